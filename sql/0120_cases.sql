-- Cases: what people and machines did about one subject, and what proves it.

-- The last number that a case of a project got.
create table case_numbers (
  project_id text primary key references projects (id) on delete cascade,
  last integer not null
);

create table cases (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  number integer not null,
  title text not null,
  description text,
  status text not null default 'open' check (status in ('open', 'in_progress', 'waiting', 'resolved', 'closed')),
  priority text not null default 'normal' check (priority in ('low', 'normal', 'high', 'urgent')),
  subject jsonb,
  external_id text,
  actor_id text references actors (id) on delete set null,
  assignee text,
  -- A playbook; whoever deletes it takes it away here.
  playbook_id text,
  -- json, not jsonb, both: what a caller wrote comes back with its keys in their order.
  fields json not null default '{}',
  metadata json,
  tags jsonb not null default '{}',
  due_at timestamptz(3),
  outcome text,
  outcome_note text,
  -- The execution of a playbook that is under way.
  active_execution_id text,
  execution_count integer not null default 0,
  evidence_count integer not null default 0,
  resolved_at timestamptz(3),
  closed_at timestamptz(3),
  -- { kind, id }
  created_by jsonb,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now(),
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

create trigger row_counts_inserted after insert on cases referencing new table as changed
  for each statement execute function count_rows();
create trigger row_counts_deleted after delete on cases referencing old table as changed
  for each statement execute function count_rows();
create trigger row_counts_kept before update of project_id on cases
  for each statement execute function refuse_other_scope();

-- What happened, in the order in which it was written: under the lock of the case.
create table case_timeline (
  id text primary key,
  seq bigint generated always as identity,
  project_id text not null references projects (id) on delete cascade,
  case_id text not null references cases (id) on delete cascade,
  kind text not null,
  principal_kind text not null check (principal_kind in ('user', 'api_key', 'automation', 'approval')),
  principal_id text,
  playbook_execution_id text,
  step_key text,
  data json not null default '{}',
  -- Of data: the footprint of a project adds it up.
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
  -- Loose: what a case cites may be deleted, and its hash stays.
  file_id text,
  url text,
  sha256 text not null,
  playbook_execution_id text,
  step_key text,
  -- The turn that said it, whose purge takes the content.
  generation_id text,
  -- { kind, id }
  captured_by jsonb not null,
  withdrawn_at timestamptz(3),
  withdrawn_reason text,
  -- Of the content: the footprint of a project adds it up.
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
  -- Loose: a link outlives its target.
  target_id text not null,
  -- { kind, id }
  created_by jsonb,
  created_at timestamptz(3) not null default clock_timestamp(),
  unique (case_id, type, target_id)
);
create index case_links_project on case_links (project_id);
