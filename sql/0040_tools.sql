-- Tools: definitions that agents, callers and the platform itself call.

create table tools (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  type text not null,
  description text,
  -- json, not jsonb: what a caller wrote comes back with its keys in their order.
  parameters json,
  execute json,
  actions text[],
  context_keys text[],
  preset_parameters json,
  pipeline json,
  output_mapping json,
  idempotent boolean not null default false,
  -- Every secret that a token of the definition names. One that is deleted stays here: a call then fails.
  secret_ids text[] not null default '{}',
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index tools_project on tools (project_id, created_at desc, id desc);
-- Which tools name a secret: asked for what refers to it.
create index tools_secrets on tools using gin (secret_ids);
