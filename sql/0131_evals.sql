-- Evals: how an agent is measured by a dataset.

create table evals (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  agent_id text not null references agents (id) on delete cascade,
  dataset_id text not null references datasets (id) on delete cascade,
  -- json, not jsonb: what a caller wrote comes back with its keys in their order.
  scorers json not null,
  pass_threshold double precision check (pass_threshold between 0 and 1),
  max_error_rate double precision check (max_error_rate between 0 and 1),
  group_by text,
  -- Counts the changes of what a verdict goes by.
  revision integer not null default 1,
  -- What judges among the scorers name, and whether one goes by the default route of the project.
  ai_provider_ids text[] not null default '{}',
  inherits_route boolean not null default false,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index evals_project on evals (project_id, created_at desc, id desc);
create unique index evals_name on evals (project_id, name);
create index evals_agent on evals (agent_id, created_at desc, id desc);
create index evals_dataset on evals (dataset_id, created_at desc, id desc);
create index evals_providers on evals using gin (ai_provider_ids);
create index evals_inheriting on evals (project_id) where inherits_route;
