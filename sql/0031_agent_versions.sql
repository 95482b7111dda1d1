-- Every configuration that an agent has had, and releases, which serve two of them side by side.

create table agent_versions (
  id text primary key,
  agent_id text not null references agents (id) on delete cascade,
  version integer not null check (version >= 1),
  -- Every field that a caller may write, as it stood. json, not jsonb: schemas keep the order of their keys.
  config json not null,
  label text,
  eval_run_id text,
  -- Loose: a version outlives its author.
  created_by text,
  created_at timestamptz(3) not null default now(),
  unique (agent_id, version)
);

-- What agents are now. Of what they were before nothing is known.
insert into agent_versions (id, agent_id, version, config, created_at)
select 'agver_' || right(id, 26), id, version,
  json_build_object('name', name, 'instructions', instructions, 'ai_provider_id', ai_provider_id, 'model', model,
    'max_steps', max_steps, 'temperature', temperature, 'max_output_tokens', max_output_tokens, 'top_p', top_p, 'seed', seed,
    'provider_options', provider_options, 'output_schema', output_schema, 'prompt_caching', prompt_caching,
    'max_context_messages', max_context_messages, 'single_session_per_actor', single_session_per_actor,
    'trace_content_mode', trace_content_mode),
  updated_at
from agents;

-- { stable_version, canary_version, canary_percent, promotion_gate, started_at, started_by }; null without a release.
alter table agents add column active_release json;
-- Ids that the configurations of both versions name: those rows are not deleted while the release serves them.
alter table agents add column release_references text[];
create index agents_release_references on agents using gin (release_references) where release_references is not null;

-- The version that a turn was given when it was made; null for one that gets it at its start.
alter table generations add column assigned_version integer;
