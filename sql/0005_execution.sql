-- AI providers and agents (execution, 1 and 3).

create table ai_providers (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  provider text not null check (provider in
    ('openai', 'anthropic', 'google', 'xai', 'groq', 'ollama', 'azure', 'bedrock', 'vertex', 'gateway', 'custom')),
  default_model text not null,
  secret_id text references secrets (id),
  base_url text,
  -- As its caller sees it: credential values read "***" and are in sealed_credentials.
  config jsonb,
  sealed_credentials text,
  -- Every secret a call needs: secret_id and those the header tokens name.
  secret_ids text[] not null default '{}',
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index ai_providers_project on ai_providers (project_id, created_at desc, id desc);
create index ai_providers_secret on ai_providers (secret_id) where secret_id is not null;

create table agents (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text,
  instructions text,
  ai_provider_id text not null references ai_providers (id),
  model text,
  max_steps integer check (max_steps >= 1),
  temperature double precision,
  max_output_tokens integer check (max_output_tokens >= 1),
  top_p double precision,
  seed bigint,
  provider_options jsonb,
  -- json, not jsonb: a schema comes back with its keys in the order its author wrote them.
  output_schema json,
  prompt_caching jsonb,
  max_context_messages integer check (max_context_messages >= 1),
  single_session_per_actor boolean not null default false,
  version integer not null default 1,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index agents_project on agents (project_id, created_at desc, id desc);
create index agents_ai_provider on agents (ai_provider_id);
