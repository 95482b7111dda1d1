-- Items of eval runs are work items: their message is the lease. An item with a turn is `queued` to be scored.
alter table eval_results drop constraint eval_results_state_check;
drop index eval_results_open;
alter table eval_results
  drop column held_until,
  add column due_at timestamptz(3),
  add column losses integer not null default 0,
  add column failures integer not null default 0;
update eval_results set state = case state when 'answered' then 'queued' else state end, due_at = now() where state <> 'done';
alter table eval_results
  alter column due_at set default now(),
  add check (state in ('queued', 'running', 'asked', 'done'));
create index eval_results_open on eval_results (eval_run_id, state) where state <> 'done';
create index eval_results_due on eval_results (due_at, id) where due_at is not null;
