-- Model routes: ordered targets around single model calls, the default of a project, and what is known of failing targets.

create table model_routes (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  -- In the order of their priority, each with all four keys.
  targets jsonb not null,
  -- The providers that the targets name, each once: what keeps them from being deleted.
  ai_provider_ids text[] not null,
  retry_on text[] not null default '{provider_error,timeout,rate_limited}',
  failure_threshold integer not null default 3 check (failure_threshold >= 1),
  cooldown_seconds integer not null default 60 check (cooldown_seconds >= 1),
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index model_routes_project on model_routes (project_id, created_at desc, id desc);
create unique index model_routes_name on model_routes (project_id, name);
create index model_routes_providers on model_routes using gin (ai_provider_ids);

-- One row a target that failed and has not answered since; a target without one is healthy. A crash of the database
-- empties it, and all targets are tried again.
create unlogged table model_breakers (
  ai_provider_id text not null references ai_providers (id) on delete cascade,
  model text not null,
  -- Consecutive.
  failures integer not null,
  failed_at timestamptz(3) not null,
  -- Until when the caller that tries the target after its cooldown keeps the others away.
  probe_until timestamptz(3),
  primary key (ai_provider_id, model)
);
create index model_breakers_failed on model_breakers (failed_at);

alter table projects add foreign key (default_model_route_id) references model_routes (id);
create index projects_default_model_route on projects (default_model_route_id) where default_model_route_id is not null;

-- An agent has a provider, or a route, or takes the default route of its project.
alter table agents
  alter column ai_provider_id drop not null,
  add column model_route_id text references model_routes (id),
  add constraint agents_binding check (ai_provider_id is null or model_route_id is null),
  add constraint agents_model check (model is null or ai_provider_id is not null);
create index agents_model_route on agents (model_route_id) where model_route_id is not null;
create index agents_inheriting on agents (project_id, id) where ai_provider_id is null and model_route_id is null;

-- How the calls of a routed turn went.
alter table generations add column routing jsonb;
