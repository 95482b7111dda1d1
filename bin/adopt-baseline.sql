-- Tables of a database with all migrations up to 0241_rule_firings, changed to the tables of sql/.
comment on table generation_work is null;
alter table trigger_firings validate constraint trigger_firings_state_check;
alter table ingestion_attempts drop column holder, drop column heartbeat_at;
alter table trigger_firings drop column holder, drop column heartbeat_at;
update task_dispatches set due_at = look_at where state = 'started';
alter table task_dispatches drop column holder, drop column heartbeat_at, drop column look_at;
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
  add constraint eval_results_state_check check (state in ('queued', 'running', 'asked', 'done'));
create index eval_results_open on eval_results (eval_run_id, state) where state <> 'done';
create index eval_results_due on eval_results (due_at, id) where due_at is not null;
