-- Workflows: state machines that tasks live in, with their versions.

create table workflows (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  description text,
  version integer not null default 1,
  -- json, not jsonb: what a caller wrote comes back with its keys in their order.
  states json not null,
  transitions json not null,
  payload_schema json,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index workflows_project on workflows (project_id, created_at desc, id desc);
create unique index workflows_name on workflows (project_id, name);

create table workflow_versions (
  id text primary key,
  workflow_id text not null references workflows (id) on delete cascade,
  version integer not null check (version >= 1),
  config json not null,
  label text,
  -- Loose: a version outlives its author.
  created_by text,
  created_at timestamptz(3) not null default now(),
  unique (workflow_id, version)
);
