-- Orchestrations: directed graphs of steps, with their versions.

create table orchestrations (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  description text,
  version integer not null default 1,
  -- json, not jsonb: what a caller wrote comes back with its keys in their order.
  nodes json not null,
  edges json not null,
  state_schema json,
  input_schema json,
  -- What another module drives its own work with: such a graph has no routes of its own.
  managed_by text,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index orchestrations_project on orchestrations (project_id, created_at desc, id desc);

create table orchestration_versions (
  id text primary key,
  orchestration_id text not null references orchestrations (id) on delete cascade,
  version integer not null check (version >= 1),
  config json not null,
  label text,
  -- Loose: a version outlives its author.
  created_by text,
  created_at timestamptz(3) not null default now(),
  unique (orchestration_id, version)
);
