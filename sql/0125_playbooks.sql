-- Playbooks: procedures of numbered steps, with their versions.

create table playbooks (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  description text,
  version integer not null default 1,
  -- json, not jsonb: what a caller wrote comes back with its keys in their order.
  steps json not null,
  case_schema json,
  input_schema json,
  outcome json,
  resolve_case boolean not null default true,
  -- The graph that its executions run: version for version.
  orchestration_id text not null references orchestrations (id),
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create unique index playbooks_name on playbooks (project_id, name);
create index playbooks_project on playbooks (project_id, created_at desc, id desc);
create unique index playbooks_orchestration on playbooks (orchestration_id);

create table playbook_versions (
  id text primary key,
  playbook_id text not null references playbooks (id) on delete cascade,
  version integer not null check (version >= 1),
  config json not null,
  label text,
  -- Loose: a version outlives its author.
  created_by text,
  created_at timestamptz(3) not null default now(),
  unique (playbook_id, version)
);
