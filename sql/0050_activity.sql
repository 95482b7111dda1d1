-- What agents and automation did, what people should look at, and secrets that expire or lie elsewhere.

create table activity_entries (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  kind text not null,
  severity text not null,
  summary text not null,
  -- json, not jsonb: it is shown as it was written and never asked.
  detail json,
  -- Plain ids, here and of exceptions: what they name may be deleted.
  orchestration_run_id text,
  agent_id text,
  generation_id text,
  ref_id text,
  -- When the row was written, by the clock of the database and not by the start of the transaction: readers that follow the
  -- feed then know how far back what is not committed yet may lie.
  created_at timestamptz(3) not null default clock_timestamp()
);
create index activity_entries_project on activity_entries (project_id, created_at, id);
create index activity_entries_kind on activity_entries (project_id, kind, created_at, id);
create index activity_entries_serious on activity_entries (project_id, created_at, id) where severity <> 'info';
create index activity_entries_agent on activity_entries (agent_id, created_at, id) where agent_id is not null;
create index activity_entries_generation on activity_entries (generation_id, created_at, id) where generation_id is not null;
create index activity_entries_run on activity_entries (orchestration_run_id, created_at, id)
  where orchestration_run_id is not null;
-- What is past its retention, in all projects.
create index activity_entries_created on activity_entries (created_at);

create table exceptions (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  status text not null default 'open',
  severity text not null,
  kind text not null,
  title text not null,
  detail json,
  -- What occurrences of one matter have in common; null never folds.
  dedup_key text,
  occurrence_count bigint not null default 1,
  last_seen_at timestamptz(3) not null default now(),
  orchestration_run_id text,
  node_id text,
  agent_id text,
  guardrail_version text,
  acknowledged_by text,
  resolved_by text,
  resolution_note text,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index exceptions_project on exceptions (project_id, created_at desc, id desc);
create index exceptions_unresolved on exceptions (project_id, status, created_at desc, id desc) where status <> 'resolved';
create unique index exceptions_dedup on exceptions (project_id, dedup_key) where status <> 'resolved';
create index exceptions_kind on exceptions (project_id, kind, created_at desc, id desc);
create index exceptions_agent on exceptions (agent_id) where agent_id is not null;
create index exceptions_run on exceptions (orchestration_run_id) where orchestration_run_id is not null;

create trigger row_counts_inserted after insert on exceptions referencing new table as changed
  for each statement execute function count_rows();
create trigger row_counts_deleted after delete on exceptions referencing old table as changed
  for each statement execute function count_rows();
create trigger row_counts_kept before update of project_id on exceptions
  for each statement execute function refuse_other_scope();

alter table secrets
  alter column sealed_value drop not null,
  -- Where the value lies instead: { type, path }.
  add column source jsonb,
  add column previous_source jsonb,
  -- The date of expiry that was reported.
  add column expiry_reported_for timestamptz(3),
  add constraint secrets_value check ((sealed_value is null) <> (source is null));
create index secrets_expiring on secrets (expires_at) where expires_at is not null and expiry_reported_for is distinct from expires_at;
