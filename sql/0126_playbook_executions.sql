-- Executions: playbooks over cases, with a record for each step.

create table playbook_executions (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  case_id text not null references cases (id) on delete cascade,
  -- Loose: an execution outlives its playbook.
  playbook_id text not null,
  playbook_name text not null,
  playbook_version integer not null,
  -- The procedure as it stood in that version.
  definition json not null,
  status text not null default 'queued'
    check (status in ('queued', 'running', 'waiting', 'completed', 'failed', 'cancelled')),
  input json not null default '{}',
  metadata json,
  current_step_key text,
  -- { type, step_key, assignee, due_at, approval_id, resumes_at }
  waiting_on jsonb,
  outcome text,
  output json,
  error jsonb,
  -- Loose: runs go with the graph of their playbook.
  orchestration_run_id text not null,
  previous_orchestration_run_ids text[] not null default '{}',
  trigger_id text,
  started_by jsonb,
  started_at timestamptz(3),
  completed_at timestamptz(3),
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
) with (fillfactor = 70);
create index playbook_executions_project on playbook_executions (project_id, created_at desc, id desc);
create index playbook_executions_case on playbook_executions (case_id, created_at desc, id desc);
create index playbook_executions_playbook on playbook_executions (playbook_id, created_at desc, id desc);
create unique index playbook_executions_run on playbook_executions (orchestration_run_id);
create unique index playbook_executions_active on playbook_executions (case_id)
  where status in ('queued', 'running', 'waiting');
create index playbook_executions_waiting on playbook_executions (project_id, created_at desc, id desc)
  where status = 'waiting';

create table playbook_execution_steps (
  execution_id text not null references playbook_executions (id) on delete cascade,
  key text not null,
  position integer not null,
  title text not null,
  type text not null,
  status text not null default 'pending'
    check (status in ('pending', 'running', 'waiting', 'completed', 'failed', 'skipped', 'cancelled')),
  attempt integer not null default 0,
  -- Attempts in runs before the one that drives it now.
  attempts_before integer not null default 0,
  input json,
  output json,
  error jsonb,
  assignee text,
  due_at timestamptz(3),
  overdue boolean not null default false,
  approval_id text,
  generation_id text,
  decision_id text,
  orchestration_run_id text,
  tool_id text,
  completed_by jsonb,
  note text,
  started_at timestamptz(3),
  completed_at timestamptz(3),
  primary key (execution_id, key)
) with (fillfactor = 70);
-- What becomes overdue.
create index playbook_execution_steps_due on playbook_execution_steps (due_at)
  where due_at is not null and status = 'waiting' and not overdue;
