-- Tasks: items that live in the states of a workflow.

create table tasks (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  workflow_id text not null references workflows (id) on delete cascade,
  workflow_version integer not null,
  title text not null,
  state text not null,
  status text not null check (status in ('open', 'closed')),
  payload json not null,
  metadata json,
  last_result json,
  assignee text,
  due_at timestamptz(3),
  active_dispatch json,
  automation_status text check (automation_status in ('running', 'completed', 'failed', 'unrouted', 'paused')),
  automation_error json,
  automation_chain_depth integer not null,
  pending_transition text,
  pending_approval_id text,
  -- Who asked for the gated transition, with the context that came with it.
  gate json,
  gate_context text,
  pause_requested_at timestamptz(3),
  pause_reason text,
  entered_state_at timestamptz(3) not null,
  -- Counts the changes of the row: who decided on an older one writes nothing.
  revision integer not null,
  -- Counts the entries into states: what belongs to an earlier one is not heard of.
  entry_seq integer not null,
  -- When a task that is still in its state is reported as stalled; null once it was.
  stalls_at timestamptz(3),
  -- Who moved it last: whom its dispatches act as.
  authority json not null,
  -- The tool context, sealed.
  context text,
  created_at timestamptz(3) not null,
  updated_at timestamptz(3) not null
) with (fillfactor = 80);
-- Lists read these backwards: where keys rise, pages stay full.
create index tasks_project on tasks (project_id, created_at, id);
create index tasks_workflow on tasks (workflow_id, state, created_at, id);
create index tasks_open on tasks (workflow_id) where status = 'open';
create index tasks_assignee on tasks (project_id, assignee) where assignee is not null;
create index tasks_due on tasks (project_id, due_at) where due_at is not null;
create index tasks_stalls on tasks (stalls_at) where stalls_at is not null;

create trigger row_counts_inserted after insert on tasks referencing new table as changed
  for each statement execute function count_rows();
create trigger row_counts_deleted after delete on tasks referencing old table as changed
  for each statement execute function count_rows();
create trigger row_counts_kept before update of project_id on tasks
  for each statement execute function refuse_other_scope();

-- What happened to a task, oldest first.
create table task_transitions (
  id text primary key,
  task_id text not null references tasks (id) on delete cascade,
  from_state text,
  to_state text not null,
  transition text,
  principal_kind text not null check (principal_kind in ('user', 'api_key', 'automation', 'approval')),
  -- Loose, all of them: history outlives what it names.
  principal_id text,
  generation_id text,
  orchestration_run_id text,
  tool_id text,
  trigger_firing_id text,
  note text,
  created_at timestamptz(3) not null
);
create index task_transitions_task on task_transitions (task_id, created_at, id);

-- The one dispatch that a task has under way; none without.
create table task_dispatches (
  task_id text primary key references tasks (id) on delete cascade,
  -- `<task>:<entry_seq>:<attempt>`, which is the key that side effects are made under.
  id text not null,
  project_id text not null,
  entry_seq integer not null,
  attempt integer not null,
  kind text not null check (kind in ('agent', 'orchestration', 'tool', 'trigger')),
  -- `queued` waits for a worker, `running` calls a tool, `started` waits for what it started, `held` for the end of a pause.
  state text not null check (state in ('queued', 'running', 'started', 'held')),
  -- The turn, run or firing that it waits for.
  result_id text,
  -- When somebody has to take it up: a queued one at once or after a failure, a running one when its lease is over.
  due_at timestamptz(3),
  -- When somebody looks whether what it waits for has settled without a word.
  look_at timestamptz(3),
  claims integer not null default 0,
  losses integer not null default 0,
  failures integer not null default 0,
  heartbeat_at timestamptz(3)
) with (fillfactor = 70);
create index task_dispatches_due on task_dispatches (due_at) where due_at is not null;
create index task_dispatches_look on task_dispatches (look_at) where look_at is not null;
create index task_dispatches_result on task_dispatches (result_id) where result_id is not null;
create index task_dispatches_held on task_dispatches (project_id, task_id) where state = 'held';

-- The task that a run was dispatched for. Loose: a run outlives it.
alter table orchestration_runs add column task_id text;

-- How many tasks a workflow has in each state, so that a board does not count them. As row_counts.
create table task_state_counts (
  workflow_id text not null,
  state text not null,
  shard smallint not null,
  count bigint not null,
  primary key (workflow_id, state, shard)
) with (fillfactor = 50);

create function count_task_states() returns trigger language plpgsql as $$
begin
  for free in 0..1023 loop
    -- The lock of row_counts: a transaction that has a shard there has it here.
    continue when not pg_try_advisory_xact_lock(1836413812, free);
    if tg_op = 'INSERT' then
      insert into task_state_counts as c (workflow_id, state, shard, count)
      select workflow_id, state, free, count(*) from changed group by workflow_id, state order by workflow_id, state
      on conflict (workflow_id, state, shard) do update set count = c.count + excluded.count;
    elsif tg_op = 'DELETE' then
      insert into task_state_counts as c (workflow_id, state, shard, count)
      select workflow_id, state, free, -count(*) from changed group by workflow_id, state order by workflow_id, state
      on conflict (workflow_id, state, shard) do update set count = c.count + excluded.count;
    else
      insert into task_state_counts as c (workflow_id, state, shard, count)
      values (old.workflow_id, old.state, free, -1), (new.workflow_id, new.state, free, 1)
      on conflict (workflow_id, state, shard) do update set count = c.count + excluded.count;
    end if;
    return null;
  end loop;
  raise exception 'more than 1024 transactions count rows at once' using errcode = 'too_many_connections';
end $$;

create trigger state_counts_inserted after insert on tasks referencing new table as changed
  for each statement execute function count_task_states();
create trigger state_counts_deleted after delete on tasks referencing old table as changed
  for each statement execute function count_task_states();
create trigger state_counts_moved after update of state on tasks
  for each row when (old.state <> new.state) execute function count_task_states();

-- At the commit: what the delete cascades to counts itself after the delete.
create function drop_task_state_counts() returns trigger language plpgsql as $$
begin
  delete from task_state_counts where workflow_id = old.id;
  return null;
end $$;
create constraint trigger state_counts_dropped after delete on workflows deferrable initially deferred
  for each row execute function drop_task_state_counts();
