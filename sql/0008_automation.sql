-- breaking: false

-- Orchestrations and runs, triggers, workflows and tasks.

create table orchestrations (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null, description text, version integer not null default 1,
  nodes json not null, edges json not null, state_schema json, input_schema json,
  -- Module that executes its work by this graph, which then has no routes; `deletion` until its runs are stopped.
  managed_by text,
  author jsonb,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  a2a jsonb
);
create index orchestrations_project on orchestrations (project_id, created_at desc, id desc);
create index orchestrations_author on orchestrations ((author ->> 'id'));
create index orchestrations_deletion on orchestrations (id) where managed_by = 'deletion';

create table orchestration_versions (
  id text primary key,
  orchestration_id text not null references orchestrations (id) on delete cascade,
  version integer not null check (version >= 1),
  config json not null, label text, created_by text, author jsonb,
  created_at timestamptz(3) not null default now(),
  unique (orchestration_id, version)
);

-- Messages of runs are wake-ups only.
create table orchestration_runs (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  orchestration_id text not null references orchestrations (id) on delete cascade,
  orchestration_version integer not null,
  -- Module that drives the run, such as playbooks: such a run is readable by ID, but neither listed nor counted.
  driver text,
  status text not null default 'queued'
    check (status in ('queued', 'running', 'sleeping', 'awaiting_input', 'succeeded', 'failed', 'cancelled', 'expired')),
  -- Counts the changes of a run; streams resume after a revision.
  revision integer not null default 1,
  input json, metadata json,
  -- Keys of the tool context without their values.
  tool_context jsonb,
  -- tool_context and guardrail_context, sealed until the run has ended.
  context text,
  -- Writes of nodes to the state, and the outcome of each completed node: { node: { artifact, label, through } }.
  written json not null default '{}',
  outcomes json not null default '{}',
  -- Activated and not completed, in the order of the definition.
  active_nodes text[] not null default '{}',
  required_actions json not null default '[]',
  output json, error jsonb, failed_node_id text,
  -- Node executions and polls.
  steps integer not null default 0,
  -- Rounds of nodes that were activated together.
  rounds integer not null default 0,
  parent_id text references orchestration_runs (id) on delete cascade,
  parent_node_id text, parent_execution_id text,
  -- Index of its item in the collection of a loop.
  parent_index integer,
  root_id text not null, run_depth integer not null default 0, retry_of_run_id text,
  -- Loose, all of these.
  trigger_id text, trigger_firing_id text, task_id text, trace_id text,
  authority jsonb not null, permission jsonb not null,
  pause_requested_at timestamptz(3), pause_reason text,
  -- The pause is the pause of the project, whose end resumes the run.
  paused_with_project boolean not null default false,
  wake_at timestamptz(3),
  -- The earliest time at which the run is due without a wake-up: a timer, a time limit, its expiry.
  due_at timestamptz(3),
  expires_at timestamptz(3),
  -- Since when it is ready and waits for a slot.
  queued_at timestamptz(3),
  started_at timestamptz(3), completed_at timestamptz(3),
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  -- Source of the turn that started the run, which the turns of the run inherit: `eval` in an evaluation.
  source text
) with (fillfactor = 70);
create index orchestration_runs_project on orchestration_runs (project_id, created_at, id);
create index orchestration_runs_orchestration on orchestration_runs (orchestration_id, created_at, id);
create index orchestration_runs_parent on orchestration_runs (parent_id, parent_execution_id, parent_index)
  where parent_id is not null;
create index orchestration_runs_root on orchestration_runs (root_id);
create index orchestration_runs_retry on orchestration_runs (retry_of_run_id) where retry_of_run_id is not null;
create index orchestration_runs_trigger on orchestration_runs (trigger_id, created_at, id) where trigger_id is not null;
create index orchestration_runs_live on orchestration_runs (project_id, status, queued_at)
  where status in ('queued', 'running', 'sleeping', 'awaiting_input');
-- Pages of waiting runs of all projects.
create index orchestration_runs_waiting on orchestration_runs (id) where status in ('sleeping', 'awaiting_input');
create index orchestration_runs_due on orchestration_runs (due_at) where due_at is not null;
call count_table('orchestration_runs', 'project_id', 'driver');

-- One row per attempt of a node.
create table orchestration_node_executions (
  id text primary key,
  run_id text not null references orchestration_runs (id) on delete cascade,
  project_id text not null, node_id text not null, node_type text not null,
  attempt integer not null default 1,
  status text not null
    check (status in ('running', 'waiting', 'requires_action', 'completed', 'failed', 'skipped', 'cancelled')),
  -- Outcomes of one round are applied together.
  round integer not null,
  -- Its outcome is part of the state of the run, or never will be.
  applied boolean not null default false,
  -- It has waited: its outcome is applied separately.
  parked boolean not null default false,
  input json, output json, label text,
  -- Whether edges without a label pass.
  through boolean not null default true,
  error jsonb, generation_id text, approval_id text, decision_id text,
  -- Continues where the attempt stopped: the collection of a loop, the position of a poll, the input of a decision.
  progress json,
  -- Node types that workers execute: number of claims, and end of the lease.
  deliveries integer not null default 0, holder text, leased_until timestamptz(3),
  polls integer not null default 0,
  wake_at timestamptz(3),
  -- Timeout of a callback, a turn or a run.
  deadline_at timestamptz(3),
  -- SHA-256 of the token of a pending callback.
  callback_hash text,
  -- Processing time in workers.
  compute_seconds double precision not null default 0,
  started_at timestamptz(3), completed_at timestamptz(3),
  created_at timestamptz(3) not null default now(),
  unique (run_id, node_id, attempt)
) with (fillfactor = 70);
create index orchestration_node_executions_run on orchestration_node_executions (run_id, created_at, id);
-- Expired leases, slots of a project, statistics of the queue.
create index orchestration_node_executions_leased on orchestration_node_executions (project_id, leased_until)
  where leased_until is not null;
create index orchestration_node_executions_generation on orchestration_node_executions (generation_id)
  where generation_id is not null;
create index orchestration_node_executions_approval on orchestration_node_executions (approval_id)
  where approval_id is not null;
create index orchestration_node_executions_decision on orchestration_node_executions (decision_id)
  where decision_id is not null;
create unique index orchestration_node_executions_callback on orchestration_node_executions (callback_hash)
  where callback_hash is not null;
-- Recent waiting times for a worker. Rows are appended in the order of their times: summaries of page ranges suffice and
-- cost writers nothing.
create index orchestration_node_executions_started on orchestration_node_executions using brin (started_at)
  with (pages_per_range = 16, autosummarize = on);

-- Whether a run is about to be stopped: its orchestration is being deleted, or an ancestor node execution has ended. A
-- stopped run leaves its descendants to workers, page by page; statements that start work of a run check this first. Reads
-- by primary keys, once per ancestor.
create function orchestration_run_stopping(orchestration text, parent_execution text) returns boolean
language plpgsql stable as $$
declare
  parent record;
begin
  if exists (select from orchestrations where id = orchestration and managed_by = 'deletion') then
    return true;
  end if;
  while parent_execution is not null loop
    select e.status, r.parent_execution_id into parent
    from orchestration_node_executions e join orchestration_runs r on r.id = e.run_id
    where e.id = parent_execution;
    if not found or parent.status <> 'running' then
      return true;
    end if;
    parent_execution := parent.parent_execution_id;
  end loop;
  return false;
end $$;

create table triggers (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null, description text,
  type text not null check (type in ('manual', 'webhook', 'schedule', 'event')),
  target_type text not null,
  -- Loose: without the target, firings fail.
  target_id text not null,
  action text, input json, input_mapping json, cron text, timezone text,
  overlap_policy text check (overlap_policy in ('allow', 'skip')),
  misfire_policy text check (misfire_policy in ('fire_once', 'skip')),
  event_pattern text, event_filter json,
  signature_scheme text check (signature_scheme in ('timestamped', 'body_sha256')),
  signature_header text, active boolean not null default true,
  policy_id text references policies (id),
  next_fire_at timestamptz(3),
  -- Principal of its firings: { type, id, via }. Its creator may be another one.
  authority jsonb not null, created_by jsonb not null,
  sealed_secret text,
  -- After a rotation: verifies until then.
  previous_sealed_secret text,
  previous_secret_until timestamptz(3),
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);
create index triggers_project on triggers (project_id, created_at desc, id desc);
create unique index triggers_name on triggers (project_id, name);
create index triggers_event on triggers (project_id) where type = 'event';
create index triggers_due on triggers (next_fire_at) where next_fire_at is not null;
create index triggers_policy on triggers (policy_id) where policy_id is not null;

-- Starts of triggers. A firing is also its work item.
create table trigger_firings (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  trigger_id text not null references triggers (id) on delete cascade,
  source text not null check (source in ('manual', 'webhook', 'schedule', 'event')),
  -- `queued` waits for a worker, `running` calls a tool, `started` waits for its result. `skipped`: first firing of a trigger
  -- beyond the limit of its root; later ones are only counted.
  state text not null default 'queued' check (state in ('queued', 'running', 'started', 'succeeded', 'failed', 'skipped')),
  input json not null, target_type text not null,
  -- Started run or turn.
  result_id text,
  result json, error jsonb, idempotency_key text, event_id text, scheduled_for timestamptz(3),
  -- Triggers that caused the firing, oldest first, without its own.
  causation_chain text[] not null default '{}',
  -- Root of trigger_fanouts; null if the firing or its event is the root.
  root_id text,
  fired_by jsonb,
  -- Caller of a manual firing with its restrictions, which bound the firing.
  asked_by jsonb,
  -- When a queued firing is due, claim of a running one.
  due_at timestamptz(3) default now(),
  claims integer not null default 0, losses integer not null default 0, failures integer not null default 0,
  started_at timestamptz(3), completed_at timestamptz(3),
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  -- Whether `input` has not passed through the input_mapping of the trigger.
  unmapped boolean not null default false
) with (fillfactor = 80);
create index trigger_firings_trigger on trigger_firings (trigger_id, created_at, id);
create index trigger_firings_project on trigger_firings (project_id);
create unique index trigger_firings_key on trigger_firings (trigger_id, idempotency_key) where idempotency_key is not null;
create index trigger_firings_due on trigger_firings (due_at) where due_at is not null;
create index trigger_firings_live on trigger_firings (trigger_id) where state in ('queued', 'running', 'started');
create index trigger_firings_result on trigger_firings (result_id) where result_id is not null;
create index trigger_firings_started on trigger_firings (created_at, id) where state = 'started';
create index trigger_firings_ended on trigger_firings (completed_at) where state in ('succeeded', 'failed', 'skipped');

-- Bounds the breadth of causation, as its depth: all firings that an event, or a firing without an event, caused. A row
-- exists once these fire triggers in turn, or exceed the limit.
create table trigger_fanouts (
  root_id text primary key,
  project_id text not null references projects (id) on delete cascade,
  firings integer not null, skipped integer not null default 0,
  created_at timestamptz(3) not null default now()
) with (fillfactor = 50);
create index trigger_fanouts_project on trigger_fanouts (project_id);
create index trigger_fanouts_created on trigger_fanouts (created_at);

-- State machines of tasks.
create table workflows (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null, description text, version integer not null default 1,
  states json not null, transitions json not null, payload_schema json,
  author jsonb,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);
create index workflows_project on workflows (project_id, created_at desc, id desc);
create unique index workflows_name on workflows (project_id, name);
create index workflows_author on workflows ((author ->> 'id'));

create table workflow_versions (
  id text primary key,
  workflow_id text not null references workflows (id) on delete cascade,
  version integer not null check (version >= 1),
  config json not null, label text, created_by text, author jsonb,
  created_at timestamptz(3) not null default now(),
  unique (workflow_id, version)
);

create table tasks (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  workflow_id text not null references workflows (id) on delete cascade,
  workflow_version integer not null, title text not null, state text not null,
  status text not null check (status in ('open', 'closed')),
  payload json not null, metadata json, last_result json,
  -- Turn, run, firing or tool of the last result: the result is erased with the content of the turn.
  result_of text,
  assignee text, due_at timestamptz(3), active_dispatch json,
  automation_status text check (automation_status in ('running', 'completed', 'failed', 'unrouted', 'paused')),
  automation_error json, automation_chain_depth integer not null, pending_transition text,
  pending_approval_id text,
  -- Principal that requested the gated transition, and its context.
  gate json, gate_context text,
  pause_requested_at timestamptz(3), pause_reason text,
  entered_state_at timestamptz(3) not null,
  -- Counts the changes of the row: a decision on an earlier revision writes nothing.
  revision integer not null,
  -- Counts the entries into states: results of an earlier entry are ignored.
  entry_seq integer not null,
  -- When a task that is still in its state is reported as stalled; null after the report.
  stalls_at timestamptz(3),
  -- Principal of the last move, which its dispatches act as.
  authority json not null,
  -- Sealed tool context.
  context text,
  created_at timestamptz(3) not null,
  updated_at timestamptz(3) not null
) with (fillfactor = 80);
create index tasks_project on tasks (project_id, created_at, id);
create index tasks_workflow on tasks (workflow_id, state, created_at, id);
create index tasks_open on tasks (workflow_id) where status = 'open';
create index tasks_assignee on tasks (project_id, assignee) where assignee is not null;
create index tasks_due on tasks (project_id, due_at) where due_at is not null;
create index tasks_stalls on tasks (stalls_at) where stalls_at is not null;
create index tasks_result_of on tasks (result_of) where result_of is not null;
call count_table('tasks');

-- Number of tasks per state of a workflow, so that a board does not count them. As row_counts.
create table task_state_counts (
  workflow_id text not null, state text not null, shard smallint not null, count bigint not null,
  primary key (workflow_id, state, shard)
) with (fillfactor = 50);

create function count_task_states() returns trigger language plpgsql as $$
declare
  own smallint := counter_shard();
begin
  if tg_op = 'UPDATE' then
    insert into task_state_counts as c (workflow_id, state, shard, count)
    values (old.workflow_id, old.state, own, -1), (new.workflow_id, new.state, own, 1)
    on conflict (workflow_id, state, shard) do update set count = c.count + excluded.count;
  else
    insert into task_state_counts as c (workflow_id, state, shard, count)
    select workflow_id, state, own, case tg_op when 'INSERT' then 1 else -1 end * count(*)
    from changed group by workflow_id, state order by workflow_id, state
    on conflict (workflow_id, state, shard) do update set count = c.count + excluded.count;
  end if;
  return null;
end $$;
create trigger state_counts_inserted after insert on tasks referencing new table as changed
  for each statement execute function count_task_states();
create trigger state_counts_deleted after delete on tasks referencing old table as changed
  for each statement execute function count_task_states();
create trigger state_counts_moved after update of state on tasks
  for each row when (old.state <> new.state) execute function count_task_states();

-- At the commit, as drop_row_counts.
create function drop_task_state_counts() returns trigger language plpgsql as $$
begin
  delete from task_state_counts where workflow_id = old.id;
  return null;
end $$;
create constraint trigger state_counts_dropped after delete on workflows deferrable initially deferred
  for each row execute function drop_task_state_counts();

create table task_transitions (
  id text primary key,
  task_id text not null references tasks (id) on delete cascade,
  -- Revision of the task: the order, independent of clocks.
  seq integer not null,
  from_state text, to_state text not null, transition text,
  principal_kind text not null check (principal_kind in ('user', 'api_key', 'automation', 'approval')),
  -- Loose, all of these.
  principal_id text,
  generation_id text, orchestration_run_id text, tool_id text, trigger_firing_id text, note text,
  created_at timestamptz(3) not null,
  unique (task_id, seq)
);
create index task_transitions_generation on task_transitions (generation_id) where generation_id is not null;

-- The active dispatch of a task.
create table task_dispatches (
  task_id text primary key references tasks (id) on delete cascade,
  -- `<task>:<entry_seq>:<attempt>`, the idempotency key of its effects.
  id text not null,
  project_id text not null, entry_seq integer not null, attempt integer not null,
  kind text not null check (kind in ('agent', 'orchestration', 'tool', 'trigger')),
  -- `queued` waits for a worker, `running` calls a tool, `started` waits for its result, `held` for the end of a pause.
  state text not null check (state in ('queued', 'running', 'started', 'held')),
  -- Turn, run or firing that it waits for.
  result_id text,
  -- When a queued dispatch is due, claim of a running one, and when a started one is checked without a notification.
  due_at timestamptz(3),
  claims integer not null default 0, losses integer not null default 0, failures integer not null default 0
) with (fillfactor = 70);
create index task_dispatches_due on task_dispatches (due_at) where due_at is not null;
create index task_dispatches_result on task_dispatches (result_id) where result_id is not null;
create index task_dispatches_held on task_dispatches (project_id, task_id) where state = 'held';
