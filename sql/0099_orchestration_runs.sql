-- Runs of orchestrations: the rows are the whole truth, messages only say that somebody has to look.

create table orchestration_runs (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  orchestration_id text not null references orchestrations (id) on delete cascade,
  orchestration_version integer not null,
  status text not null default 'queued'
    check (status in ('queued', 'running', 'sleeping', 'awaiting_input', 'succeeded', 'failed', 'cancelled', 'expired')),
  -- Counts the changes of a run; a stream of it resumes behind one.
  revision integer not null default 1,
  input json,
  metadata json,
  -- The keys of the tool context, with nothing of their values.
  tool_context jsonb,
  -- tool_context and guardrail_context, sealed until the run has ended.
  context text,
  -- What nodes wrote beside the input and what they came to.
  written json not null default '{}',
  -- What each completed node came to: { node: { artifact, label, through } }.
  outcomes json not null default '{}',
  -- Activated and not completed, in the order of the definition.
  active_nodes text[] not null default '{}',
  required_actions json not null default '[]',
  output json,
  error jsonb,
  failed_node_id text,
  -- Attempts of nodes and of polls so far.
  steps integer not null default 0,
  -- Rounds of nodes so far that were activated together.
  rounds integer not null default 0,
  parent_id text references orchestration_runs (id) on delete cascade,
  parent_node_id text,
  -- The attempt of the node that started it.
  parent_execution_id text,
  -- Place of its item in the collection of a loop.
  parent_index integer,
  root_id text not null,
  run_depth integer not null default 0,
  retry_of_run_id text,
  -- Loose, all of them: a run outlives what started it.
  trigger_id text,
  trigger_firing_id text,
  trace_id text,
  authority jsonb not null,
  permission jsonb not null,
  pause_requested_at timestamptz(3),
  pause_reason text,
  -- The pause is that of the project, which lifts it again.
  paused_with_project boolean not null default false,
  wake_at timestamptz(3),
  -- The earliest time at which somebody has to look without being told: a timer, a time limit, the run's own end.
  due_at timestamptz(3),
  expires_at timestamptz(3),
  -- Since when it is ready and waits for room.
  queued_at timestamptz(3),
  started_at timestamptz(3),
  completed_at timestamptz(3),
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
) with (fillfactor = 70);
-- Lists read these backwards: where keys rise, pages stay full.
create index orchestration_runs_project on orchestration_runs (project_id, created_at, id);
create index orchestration_runs_orchestration on orchestration_runs (orchestration_id, created_at, id);
create index orchestration_runs_parent on orchestration_runs (parent_id, parent_execution_id, parent_index) where parent_id is not null;
create index orchestration_runs_root on orchestration_runs (root_id);
create index orchestration_runs_trigger on orchestration_runs (trigger_id, created_at, id) where trigger_id is not null;
create index orchestration_runs_live on orchestration_runs (project_id, status, queued_at)
  where status in ('queued', 'running', 'sleeping', 'awaiting_input');
create index orchestration_runs_due on orchestration_runs (due_at) where due_at is not null;

create trigger row_counts_inserted after insert on orchestration_runs referencing new table as changed
  for each statement execute function count_rows();
create trigger row_counts_deleted after delete on orchestration_runs referencing old table as changed
  for each statement execute function count_rows();
create trigger row_counts_kept before update of project_id on orchestration_runs
  for each statement execute function refuse_other_scope();

-- One row for each attempt of a node.
create table orchestration_node_executions (
  id text primary key,
  run_id text not null references orchestration_runs (id) on delete cascade,
  project_id text not null,
  node_id text not null,
  node_type text not null,
  attempt integer not null default 1,
  status text not null
    check (status in ('running', 'waiting', 'requires_action', 'completed', 'failed', 'skipped', 'cancelled')),
  -- The nodes that were activated together with it: their outcomes are applied together.
  round integer not null,
  -- Its outcome is part of the state of the run, or never will be.
  applied boolean not null default false,
  -- It has waited: its outcome is applied by itself.
  parked boolean not null default false,
  input json,
  output json,
  label text,
  -- Whether edges without a label pass.
  through boolean not null default true,
  error jsonb,
  generation_id text,
  approval_id text,
  -- What goes on where it was left: the collection of a loop, the place in a poll, what is decided.
  progress json,
  -- Of types whose work a worker does: how often it was taken, and until when it is held.
  deliveries integer not null default 0,
  leased_until timestamptz(3),
  -- Polls that were made.
  polls integer not null default 0,
  wake_at timestamptz(3),
  -- When it has taken too long: an answer that did not come, a turn or a run that was not over.
  deadline_at timestamptz(3),
  -- SHA-256 of the token of a callback, while it is waited for.
  callback_hash text,
  -- Seconds that workers spent on it.
  compute_seconds double precision not null default 0,
  started_at timestamptz(3),
  completed_at timestamptz(3),
  created_at timestamptz(3) not null default now(),
  unique (run_id, node_id, attempt)
) with (fillfactor = 70);
create index orchestration_node_executions_run on orchestration_node_executions (run_id, created_at, id);
-- What a worker holds or should: the lease of a lost one, the room of a project, the statistics of the queue.
create index orchestration_node_executions_leased on orchestration_node_executions (project_id, leased_until)
  where leased_until is not null;
create index orchestration_node_executions_generation on orchestration_node_executions (generation_id)
  where generation_id is not null;
create index orchestration_node_executions_approval on orchestration_node_executions (approval_id)
  where approval_id is not null;
create unique index orchestration_node_executions_callback on orchestration_node_executions (callback_hash)
  where callback_hash is not null;
