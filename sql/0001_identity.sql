-- Users, projects, keys, policies and secrets (identity, 13.5). Ids are text, made by the application, and rise with time.

create table users (
  id text primary key,
  username text not null,
  password_hash text not null,
  role text not null default 'user' check (role in ('admin', 'user')),
  -- Part of every user token: raising it ends the tokens that came before.
  token_version integer not null default 1,
  last_login_at timestamptz(3),
  disabled_at timestamptz(3),
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create unique index users_username on users (lower(username));

-- Failed logins by username, known or not: a lockout must not tell the two apart.
create table login_failures (
  username text primary key,
  failures integer not null,
  first_failed_at timestamptz(3) not null default now(),
  locked_until timestamptz(3)
);

create table policies (
  id text primary key,
  name text,
  description text,
  document jsonb not null,
  version integer not null default 1,
  -- Ships with the deployment: attachable, never changed by a request.
  managed boolean not null default false,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);

create table policy_versions (
  policy_id text not null references policies (id) on delete cascade,
  version integer not null,
  name text,
  description text,
  document jsonb not null,
  created_by text,
  created_at timestamptz(3) not null default now(),
  primary key (policy_id, version)
);

create table user_policies (
  user_id text not null references users (id) on delete cascade,
  policy_id text not null references policies (id) on delete restrict,
  position integer not null,
  primary key (user_id, policy_id)
);
create index user_policies_policy on user_policies (policy_id);

create table projects (
  id text primary key,
  name text not null,
  description text,
  guardrail_ids text[] not null default '{}',
  default_model_route_id text,
  max_run_depth integer check (max_run_depth >= 1),
  max_concurrent_runs integer check (max_concurrent_runs >= 1),
  max_chain_generations integer check (max_chain_generations >= 1),
  audit_reads_enabled boolean not null default false,
  trace_content_retention_days integer check (trace_content_retention_days >= 1),
  trace_content_mode text not null default 'full' check (trace_content_mode in ('full', 'none')),
  require_priced_model boolean not null default false,
  tags jsonb not null default '{}',
  paused_at timestamptz(3),
  pause_reason text,
  delete_at timestamptz(3),
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index projects_delete_at on projects (delete_at) where delete_at is not null;

create table project_keys (
  id text primary key,
  name text,
  -- SHA-256 of the whole key string; 256 random bits need no slow hash.
  key_hash bytea not null unique,
  key_prefix text not null,
  previous_key_hash bytea,
  previous_key_expires_at timestamptz(3),
  user_id text not null references users (id) on delete cascade,
  project_id text references projects (id) on delete cascade,
  allowed_ips text[],
  expires_at timestamptz(3),
  last_used_at timestamptz(3),
  rotated_at timestamptz(3),
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index project_keys_previous on project_keys (previous_key_hash) where previous_key_hash is not null;
create index project_keys_user on project_keys (user_id);
create index project_keys_project on project_keys (project_id);

create table project_key_policies (
  key_id text not null references project_keys (id) on delete cascade,
  policy_id text not null references policies (id) on delete restrict,
  position integer not null,
  primary key (key_id, policy_id)
);
create index project_key_policies_policy on project_key_policies (policy_id);

create table secrets (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  sealed_value text not null,
  previous_sealed_value text,
  previous_until timestamptz(3),
  value_updated_at timestamptz(3) not null default now(),
  expires_at timestamptz(3),
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index secrets_project on secrets (project_id, created_at desc, id desc);
