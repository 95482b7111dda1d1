-- Prices: what a unit of a component costs from a time on. Thresholds: what of a project's usage is announced.

create table prices (
  id text primary key,
  -- Scope: the overrides of an AI provider, the prices of a project, or both null for all projects. An override carries
  -- the project of its provider.
  project_id text references projects (id) on delete cascade,
  ai_provider_id text references ai_providers (id) on delete cascade,
  meter_type text not null check (meter_type in ('llm_tokens', 'compute_execution', 'tool_execution', 'api_request', 'storage')),
  provider text not null,
  model text not null,
  component text not null,
  unit text not null,
  unit_price numeric not null check (unit_price >= 0),
  effective_from timestamptz(3) not null,
  -- SRN of the tool or agent whose calls or turns it adds a component to.
  resource text,
  -- json, not jsonb: what a caller wrote comes back with its keys in their order.
  quantity json,
  created_at timestamptz(3) not null default now(),
  check (ai_provider_id is null or project_id is not null),
  check (resource is null or project_id is not null and ai_provider_id is null),
  check (quantity is null or resource is not null)
);
-- Finds what prices a component, and the latest of it.
create unique index prices_identity on prices
  (project_id, ai_provider_id, provider, model, resource, component, effective_from) nulls not distinct;
create index prices_project on prices (project_id, created_at, id);
create index prices_provider on prices (ai_provider_id, created_at, id) where ai_provider_id is not null;

create table usage_thresholds (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  metric text not null check (metric in ('cost_usd', 'tokens')),
  -- "window" is a word of SQL: quoted where a statement names it.
  "window" text not null check ("window" in ('calendar_month', 'rolling_24h')),
  threshold numeric not null check (threshold > 0),
  last_fired_at timestamptz(3),
  -- The month in which it fired last.
  fired_window_key text,
  -- Whether a rolling one fires when its value is reached; not from there until it has fallen below 90 %.
  armed boolean not null default true,
  created_at timestamptz(3) not null default now()
);
create index usage_thresholds_project on usage_thresholds (project_id, created_at, id);
create index usage_thresholds_disarmed on usage_thresholds (project_id) where not armed;
