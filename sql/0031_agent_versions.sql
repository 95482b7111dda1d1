-- Every configuration that an agent has had, and releases, which serve two of them side by side.

-- What is locked is locked before the work begins: a writer who came in between would wait for this, and this for him.
alter table agents
  -- { stable_version, canary_version, canary_percent, promotion_gate, started_at, started_by }; null without a release.
  add column active_release json,
  -- Ids that the configurations of both versions name: those rows are not deleted while the release serves them.
  add column release_references text[];
-- The version that a turn was given when it was made; null for one that gets it at its start.
alter table generations add column assigned_version integer;
create index agents_release_references on agents using gin (release_references) where release_references is not null;
create index agents_released on agents (project_id) where active_release is not null;

create table agent_versions (
  id text primary key,
  agent_id text not null,
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
  json_build_object('name', name, 'instructions', instructions, 'ai_provider_id', ai_provider_id, 'model_route_id', model_route_id,
    'model', model, 'max_steps', max_steps, 'temperature', temperature, 'max_output_tokens', max_output_tokens, 'top_p', top_p, 'seed', seed,
    'provider_options', provider_options, 'output_schema', output_schema, 'prompt_caching', prompt_caching,
    'max_context_messages', max_context_messages, 'single_session_per_actor', single_session_per_actor,
    'trace_content_mode', trace_content_mode),
  updated_at
from agents;
alter table agent_versions add foreign key (agent_id) references agents (id) on delete cascade;

-- The row of an agent as a turn is served it: with the version asked for, else with the one that a release gives the owner
-- of the turn, or a turn of nobody by a number drawn below 100, else as it stands. `unset` has every field of a
-- configuration, for versions from before some of them; what is about conversations and not about one turn stays the
-- agent's. A function because its plans are kept, and three statements of each turn ask it: without a release they cost
-- what reading the agent costs.
create function served_agent(wanted text, asked integer, owner text, drawn integer, unset jsonb) returns setof agents
language plpgsql stable rows 1 as $$
declare
  live agents;
  kept jsonb;
begin
  select * into live from agents where id = wanted;
  if not found then
    return;
  end if;
  if asked is null and live.active_release is not null then
    -- A key stays below a percentage that is raised: then no end user goes back to the stable version.
    if owner is not null then
      drawn := ('x' || left(encode(sha256(convert_to(wanted || ':' || owner, 'UTF8')), 'hex'), 8))::bit(32)::bigint % 100;
    end if;
    asked := live.active_release ->> case
      when drawn < (live.active_release ->> 'canary_percent')::integer then 'canary_version' else 'stable_version' end;
  end if;
  if asked <> live.version then
    select config into kept from agent_versions where agent_id = wanted and version = asked;
    if found then
      live := jsonb_populate_record(live, unset || kept || jsonb_build_object('version', asked,
        'max_context_messages', live.max_context_messages, 'single_session_per_actor', live.single_session_per_actor));
    end if;
  end if;
  return next live;
end $$;
