-- Exports of cases and of executions of playbooks: files that were made once, and what they were made from.

create table playbook_exports (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  -- The case, or the case of the execution.
  case_id text not null references cases (id) on delete cascade,
  subject_type text not null check (subject_type in ('case', 'playbook_execution')),
  subject_id text not null,
  formats text[] not null,
  status text not null default 'queued' check (status in ('queued', 'running', 'completed', 'failed', 'expired')),
  -- [{ format, file_id, size_bytes, sha256 }]
  files jsonb not null default '[]',
  -- [{ type, id, reason }]
  omitted jsonb not null default '[]',
  error jsonb,
  -- { kind, id }
  requested_by jsonb not null,
  expires_at timestamptz(3),
  completed_at timestamptz(3),
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
) with (fillfactor = 85);
create index playbook_exports_project on playbook_exports (project_id, created_at desc, id desc);
create index playbook_exports_subject on playbook_exports (project_id, subject_id, created_at desc, id desc);
create index playbook_exports_case on playbook_exports (case_id);
create index playbook_exports_expiring on playbook_exports (expires_at, id) where status = 'completed';

create trigger row_counts_inserted after insert on playbook_exports referencing new table as changed
  for each statement execute function count_rows();
create trigger row_counts_deleted after delete on playbook_exports referencing old table as changed
  for each statement execute function count_rows();
create trigger row_counts_kept before update of project_id on playbook_exports
  for each statement execute function refuse_other_scope();

-- Exports that wait for a worker, and those that are being built.
create table playbook_export_attempts (
  export_id text primary key references playbook_exports (id) on delete cascade,
  id text not null unique,
  state text not null default 'queued' check (state in ('queued', 'running')),
  -- When somebody has to look: a queued one then, at a running one when its lease is over.
  due_at timestamptz(3) not null default now(),
  -- Claims by workers: the number that fences a late writer.
  claims integer not null default 0,
  -- Claims whose worker was not heard of until its lease was over.
  losses integer not null default 0,
  failures integer not null default 0,
  -- Who asked for it: { type, id, via }.
  principal jsonb not null,
  heartbeat_at timestamptz(3),
  created_at timestamptz(3) not null default now()
);
create index playbook_export_attempts_due on playbook_export_attempts (due_at);
