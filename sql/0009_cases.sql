-- breaking: false

-- Playbooks, cases, executions, exports.

create table playbooks (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null, description text, version integer not null default 1,
  steps json not null, case_schema json, input_schema json, outcome json,
  resolve_case boolean not null default true,
  -- Graph of its executions, version by version.
  orchestration_id text not null references orchestrations (id),
  author jsonb,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);
create unique index playbooks_name on playbooks (project_id, name);
create index playbooks_project on playbooks (project_id, created_at desc, id desc);
create unique index playbooks_orchestration on playbooks (orchestration_id);
create index playbooks_author on playbooks ((author ->> 'id'));

create table playbook_versions (
  id text primary key,
  playbook_id text not null references playbooks (id) on delete cascade,
  version integer not null check (version >= 1),
  config json not null, label text, created_by text, author jsonb,
  created_at timestamptz(3) not null default now(),
  unique (playbook_id, version)
);

-- Last case number of a project.
create table case_numbers (
  project_id text primary key references projects (id) on delete cascade,
  last integer not null
);

create table cases (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  number integer not null, title text not null, description text,
  status text not null default 'open' check (status in ('open', 'in_progress', 'waiting', 'resolved', 'closed')),
  priority text not null default 'normal' check (priority in ('low', 'normal', 'high', 'urgent')),
  subject jsonb, external_id text,
  actor_id text references actors (id) on delete set null,
  assignee text,
  -- Removed by the deletion of the playbook.
  playbook_id text,
  fields json not null default '{}',
  metadata json,
  tags jsonb not null default '{}',
  due_at timestamptz(3), outcome text, outcome_note text, active_execution_id text,
  execution_count integer not null default 0, evidence_count integer not null default 0,
  resolved_at timestamptz(3), closed_at timestamptz(3),
  -- { kind, id }, here and in the following tables.
  created_by jsonb,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  unique (project_id, number)
) with (fillfactor = 85);
create index cases_project on cases (project_id, created_at desc, id desc);
create unique index cases_external_id on cases (project_id, external_id) where external_id is not null;
create index cases_status on cases (project_id, status, created_at desc, id desc) where status <> 'closed';
create index cases_assignee on cases (project_id, assignee, created_at desc, id desc) where assignee is not null;
create index cases_subject on cases (project_id, (subject ->> 'id')) where subject is not null;
create index cases_actor on cases (actor_id) where actor_id is not null;
create index cases_playbook on cases (playbook_id) where playbook_id is not null;
create index cases_due on cases (project_id, due_at) where due_at is not null;
create index cases_tags on cases using gin (tags jsonb_path_ops);
call count_table('cases');

create table case_timeline (
  id text primary key,
  -- Order of the writes, under the lock of the case.
  seq bigint generated always as identity,
  project_id text not null references projects (id) on delete cascade,
  case_id text not null references cases (id) on delete cascade,
  kind text not null,
  principal_kind text not null check (principal_kind in ('user', 'api_key', 'automation', 'approval')),
  principal_id text, playbook_execution_id text, step_key text,
  data json not null default '{}',
  -- Size of data, summed for the footprint of a project.
  bytes integer not null,
  created_at timestamptz(3) not null default clock_timestamp()
);
create index case_timeline_case on case_timeline (case_id, seq);
create index case_timeline_execution on case_timeline (playbook_execution_id, seq) where playbook_execution_id is not null;
create index case_timeline_project on case_timeline (project_id) include (bytes);

create table case_evidence (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  case_id text not null references cases (id) on delete cascade,
  name text not null,
  kind text not null check (kind in ('note', 'file', 'link', 'output', 'decision', 'approval')),
  content json,
  -- Loose: the hash of a deleted file remains.
  file_id text,
  url text,
  sha256 text not null,
  playbook_execution_id text, step_key text,
  -- Turn whose purge erases the content.
  generation_id text,
  captured_by jsonb not null, withdrawn_at timestamptz(3), withdrawn_reason text,
  -- Size of the content, summed for the footprint of a project.
  bytes integer not null,
  created_at timestamptz(3) not null default clock_timestamp()
);
create index case_evidence_case on case_evidence (case_id, created_at, id);
create index case_evidence_execution on case_evidence (playbook_execution_id) where playbook_execution_id is not null;
create index case_evidence_generation on case_evidence (generation_id) where generation_id is not null;
create index case_evidence_project on case_evidence (project_id) include (bytes);

create table case_links (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  case_id text not null references cases (id) on delete cascade,
  type text not null,
  -- Loose.
  target_id text not null,
  created_by jsonb,
  created_at timestamptz(3) not null default clock_timestamp(),
  unique (case_id, type, target_id)
);
create index case_links_project on case_links (project_id);

-- Playbooks over cases.
create table playbook_executions (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  case_id text not null references cases (id) on delete cascade,
  -- Loose.
  playbook_id text not null,
  playbook_name text not null, playbook_version integer not null, definition json not null,
  status text not null default 'queued'
    check (status in ('queued', 'running', 'waiting', 'completed', 'failed', 'cancelled')),
  input json not null default '{}',
  metadata json, current_step_key text,
  -- { type, step_key, assignee, due_at, approval_id, resumes_at }
  waiting_on jsonb,
  -- { step_key, pattern, filter, since, expires_at } while a step waits for an event.
  event_wait json,
  -- Of the run, unless the pause of the project is the only one.
  pause_requested_at timestamptz(3),
  pause_reason text,
  outcome text, output json, error jsonb,
  -- Loose: runs are deleted with the graph of their playbook.
  orchestration_run_id text not null,
  previous_orchestration_run_ids text[] not null default '{}',
  trigger_id text, started_by jsonb, started_at timestamptz(3), completed_at timestamptz(3),
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
) with (fillfactor = 70);
create index playbook_executions_project on playbook_executions (project_id, created_at desc, id desc);
create index playbook_executions_case on playbook_executions (case_id, created_at desc, id desc);
create index playbook_executions_playbook on playbook_executions (playbook_id, created_at desc, id desc);
create unique index playbook_executions_run on playbook_executions (orchestration_run_id);
create unique index playbook_executions_active on playbook_executions (case_id)
  where status in ('queued', 'running', 'waiting');
create index playbook_executions_waiting on playbook_executions (project_id, created_at desc, id desc)
  where status = 'waiting';
create index playbook_executions_event_wait on playbook_executions (project_id, (event_wait ->> 'pattern'), id)
  where event_wait is not null;

create table playbook_execution_steps (
  execution_id text not null references playbook_executions (id) on delete cascade,
  key text not null, position integer not null, title text not null, type text not null,
  status text not null default 'pending'
    check (status in ('pending', 'running', 'waiting', 'completed', 'failed', 'skipped', 'cancelled')),
  attempt integer not null default 0,
  -- Attempts in earlier runs.
  attempts_before integer not null default 0,
  input json, output json, error jsonb, assignee text, due_at timestamptz(3),
  overdue boolean not null default false, approval_id text, generation_id text, decision_id text,
  orchestration_run_id text, tool_id text, completed_by jsonb, note text,
  started_at timestamptz(3), completed_at timestamptz(3),
  primary key (execution_id, key)
) with (fillfactor = 70);
create index playbook_execution_steps_generation on playbook_execution_steps (generation_id)
  where generation_id is not null;
-- Steps that become overdue.
create index playbook_execution_steps_due on playbook_execution_steps (due_at)
  where due_at is not null and status = 'waiting' and not overdue;

-- Files of cases and executions.
create table playbook_exports (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  -- The case, or the case of the execution.
  case_id text not null references cases (id) on delete cascade,
  subject_type text not null check (subject_type in ('case', 'playbook_execution')),
  subject_id text not null, formats text[] not null,
  status text not null default 'queued' check (status in ('queued', 'running', 'completed', 'failed', 'expired')),
  -- [{ format, file_id, size_bytes, sha256 }]
  files jsonb not null default '[]',
  -- [{ type, id, reason }]
  omitted jsonb not null default '[]',
  error jsonb, requested_by jsonb not null, expires_at timestamptz(3), completed_at timestamptz(3),
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
) with (fillfactor = 85);
create index playbook_exports_project on playbook_exports (project_id, created_at desc, id desc);
create index playbook_exports_subject on playbook_exports (project_id, subject_id, created_at desc, id desc);
create index playbook_exports_case on playbook_exports (case_id);
create index playbook_exports_expiring on playbook_exports (expires_at, id) where status = 'completed';
call count_table('playbook_exports');

-- Work items: exports that are queued or being built.
create table playbook_export_attempts (
  export_id text primary key references playbook_exports (id) on delete cascade,
  id text not null unique,
  state text not null default 'queued' check (state in ('queued', 'running')),
  due_at timestamptz(3) not null default now(),
  claims integer not null default 0, losses integer not null default 0, failures integer not null default 0,
  -- Principal that requested it: { type, id, via }.
  principal jsonb not null,
  created_at timestamptz(3) not null default now()
);
create index playbook_export_attempts_due on playbook_export_attempts (due_at);
