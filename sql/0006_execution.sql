-- breaking: false

-- AI providers, model routes, tools, guardrails, agents, shares, turns, chains, approvals, deciders, memory rules, stream tickets.

create table ai_providers (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  provider text not null check (provider in
    ('openai', 'anthropic', 'google', 'xai', 'groq', 'ollama', 'azure', 'bedrock', 'vertex', 'gateway', 'custom')),
  default_model text not null,
  secret_id text references secrets (id),
  base_url text,
  -- As presented: credential values are "***" here and stored in sealed_credentials.
  config jsonb, sealed_credentials text,
  -- Secrets that a call needs: secret_id and the secrets of header tokens.
  secret_ids text[] not null default '{}',
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  -- What calls and checks found about the models of the provider, by model, which each call reads with the row; and the last
  -- check by capabilities, which only its reader does.
  profile jsonb not null default '{}', last_check jsonb
);
create index ai_providers_project on ai_providers (project_id, created_at desc, id desc);
create index ai_providers_secret on ai_providers (secret_id) where secret_id is not null;
create index ai_providers_secrets on ai_providers using gin (secret_ids);
alter table prices add foreign key (ai_provider_id) references ai_providers (id) on delete cascade;

-- Ordered targets for model calls.
create table model_routes (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  -- By priority, each with all four keys.
  targets jsonb not null,
  -- Distinct providers of the targets, which cannot be deleted.
  ai_provider_ids text[] not null,
  retry_on text[] not null default '{provider_error,timeout,rate_limited}',
  failure_threshold integer not null default 3 check (failure_threshold >= 1),
  cooldown_seconds integer not null default 60 check (cooldown_seconds >= 1),
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);
create index model_routes_project on model_routes (project_id, created_at desc, id desc);
create unique index model_routes_name on model_routes (project_id, name);
create index model_routes_providers on model_routes using gin (ai_provider_ids);
alter table projects add foreign key (default_model_route_id) references model_routes (id);

-- A target that failed and has not responded since; a target without a row is healthy. A crash of the database empties the
-- table, and all targets are tried again.
create unlogged table model_breakers (
  ai_provider_id text not null references ai_providers (id) on delete cascade,
  model text not null,
  -- Consecutive.
  failures integer not null,
  failed_at timestamptz(3) not null,
  -- Until then only the caller that tries the target after its cooldown uses it.
  probe_until timestamptz(3),
  primary key (ai_provider_id, model)
);
create index model_breakers_failed on model_breakers (failed_at);

create table tools (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null, type text not null, description text, parameters json, execute json, mcp json,
  actions text[], denied_actions text[], context_keys text[], preset_parameters json, pipeline json,
  output_mapping json, idempotent boolean not null default false, guardrail_ids text[],
  -- Secrets of tokens in the definition, loose: a call without the secret fails.
  secret_ids text[] not null default '{}',
  -- Tools of the pipeline.
  step_tool_ids text[],
  -- Principal of the last write that changed the effect of the definition, here and in other tables with an author. Its
  -- permissions bound the effect. Null: unknown, which permits nothing until a caller adopts the definition.
  author jsonb,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);
create index tools_project on tools (project_id, created_at desc, id desc);
create index tools_secrets on tools using gin (secret_ids);
create index tools_guardrails on tools using gin (guardrail_ids) where guardrail_ids is not null;
create index tools_steps on tools using gin (step_tool_ids) where step_tool_ids is not null;
create index tools_author on tools ((author ->> 'id'));

-- Versioned rules for calls of tools.
create table guardrails (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null, description text,
  version integer not null default 1 check (version >= 1),
  document json not null,
  -- Loose: without the tool, its values are missing in the context.
  context_tool_id text,
  context_mode text default 'merge',
  author jsonb,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);
create index guardrails_project on guardrails (project_id, created_at desc, id desc);
create index guardrails_context_tool on guardrails (context_tool_id) where context_tool_id is not null;
create index guardrails_author on guardrails ((author ->> 'id'));

-- Here and in other tables of versions `created_by` and `author` are loose.
create table guardrail_versions (
  id text primary key,
  guardrail_id text not null references guardrails (id) on delete cascade,
  version integer not null check (version >= 1),
  config json not null, label text, created_by text, author jsonb,
  created_at timestamptz(3) not null default now(),
  unique (guardrail_id, version)
);

-- One row per guardrail and call, with loose IDs.
create table guardrail_evaluations (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  guardrail_id text not null, guardrail_version integer, scope text not null, tool_id text,
  tool text, action text, class text not null, decision text not null, guard_result boolean,
  context_source text not null, context_snapshot json not null, agent_id text,
  orchestration_run_id text, generation_id text, approval_id text,
  created_at timestamptz(3) not null default now()
);
-- With ascending keys the indexes of a project and a tool take 10 MB instead of 18 for 100,000 evaluations.
create index guardrail_evaluations_project on guardrail_evaluations (project_id, created_at, id);
create index guardrail_evaluations_guardrail on guardrail_evaluations (guardrail_id, created_at, id);
create index guardrail_evaluations_tool on guardrail_evaluations (tool_id, created_at, id) where tool_id is not null;
create index guardrail_evaluations_agent on guardrail_evaluations (agent_id, created_at, id) where agent_id is not null;
create index guardrail_evaluations_generation on guardrail_evaluations (generation_id, id) where generation_id is not null;
create index guardrail_evaluations_run on guardrail_evaluations (orchestration_run_id, id) where orchestration_run_id is not null;
-- Other decisions are rare and searched for.
create index guardrail_evaluations_decision on guardrail_evaluations (project_id, decision, created_at, id)
  where decision <> 'execute';
create index guardrail_evaluations_time on guardrail_evaluations (created_at);
call count_table('guardrail_evaluations');

create table agents (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text, instructions text,
  -- A provider, a route, or neither: the default route of the project.
  ai_provider_id text references ai_providers (id),
  model_route_id text references model_routes (id),
  model text,
  max_steps integer check (max_steps >= 1),
  temperature double precision,
  max_output_tokens integer check (max_output_tokens >= 1),
  top_p double precision,
  seed bigint, provider_options jsonb, output_schema json, prompt_caching jsonb,
  max_context_messages integer check (max_context_messages >= 1),
  single_session_per_actor boolean not null default false,
  -- Whether the content of turns is stored; null: the mode of the project. The stricter mode applies.
  trace_content_mode text check (trace_content_mode in ('full', 'none')),
  knowledge_config jsonb,
  tool_bindings json, active_tool_ids text[], tool_choice json,
  stop_conditions json, step_rules json, boundary_policy json, guardrail_ids text[],
  -- `react` or `terminate`; null is terminate.
  on_approval_expiry text,
  -- Tools of bindings, and secrets of definitions in bindings, loose.
  tool_ids text[], secret_ids text[],
  version integer not null default 1,
  -- { stable_version, canary_version, canary_percent, promotion_gate, started_at, started_by }; null without a release.
  active_release json,
  -- IDs in the configurations of both versions: these rows cannot be deleted during the release.
  release_references text[],
  author jsonb,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  end_user_activity text not null default 'none' check (end_user_activity in ('none', 'labels')),
  -- How turns handle images and files of messages; null for the defaults.
  media jsonb,
  context_policy jsonb,
  -- Route in context_policy, as a column for the reference.
  summary_model_route_id text references model_routes (id),
  -- Whether it names sessions, and what front ends show of it.
  auto_title boolean not null default false,
  description text, avatar_file_id text references files (id), greeting text, suggestions text[],
  -- System texts of a client: ignored, given as a block of the user, or added to the instructions.
  client_instructions text not null default 'block' check (client_instructions in ('ignore', 'block', 'system')),
  accept_client_tools boolean not null default false,
  -- Settings of requests that take effect; null for none.
  request_settings text[],
  shared_state boolean not null default false,
  a2a jsonb,
  -- Tools that the vendor of the model runs itself, such as web search.
  vendor_tools jsonb,
  constraint agents_binding check (ai_provider_id is null or model_route_id is null),
  constraint agents_model check (model is null or ai_provider_id is not null)
);
create index agents_project on agents (project_id, created_at desc, id desc);
create index agents_ai_provider on agents (ai_provider_id);
create index agents_model_route on agents (model_route_id) where model_route_id is not null;
create index agents_inheriting on agents (project_id, id) where ai_provider_id is null and model_route_id is null;
create index agents_tools on agents using gin (tool_ids) where tool_ids is not null;
create index agents_secrets on agents using gin (secret_ids) where secret_ids is not null;
create index agents_guardrails on agents using gin (guardrail_ids) where guardrail_ids is not null;
create index agents_release_references on agents using gin (release_references) where release_references is not null;
create index agents_released on agents (project_id) where active_release is not null;
create index agents_summary_model_route on agents (summary_model_route_id) where summary_model_route_id is not null;
create index agents_avatar_file on agents (avatar_file_id) where avatar_file_id is not null;
create index agents_author on agents ((author ->> 'id'));

create table agent_versions (
  id text primary key,
  agent_id text not null references agents (id) on delete cascade,
  version integer not null check (version >= 1),
  -- Every field that callers may write.
  config json not null,
  label text, eval_run_id text, created_by text, author jsonb,
  created_at timestamptz(3) not null default now(),
  unique (agent_id, version)
);

-- Returns the agent with the configuration of a turn: the requested version, else the version that a release assigns to
-- the owner of the turn, or to a turn without an owner by a random number below 100, else the current one. `unset` has all
-- fields of a configuration, for versions from before some fields; fields about conversations are always current. A
-- function because its plans are cached and three statements of each turn use it: without a release they cost no more than
-- reading the agent.
create function served_agent(agent text, requested integer, owner text, drawn integer, unset jsonb) returns setof agents
language plpgsql stable rows 1 as $$
declare
  served agents;
  version_config jsonb;
  version_author jsonb;
begin
  select * into served from agents where id = agent;
  if not found then
    return;
  end if;
  if requested is null and served.active_release is not null then
    -- A key stays below a percentage that increases: then no end user returns to the stable version.
    if owner is not null then
      drawn := ('x' || left(encode(sha256(convert_to(agent || ':' || owner, 'UTF8')), 'hex'), 8))::bit(32)::bigint % 100;
    end if;
    requested := served.active_release ->> case
      when drawn < (served.active_release ->> 'canary_percent')::integer then 'canary_version' else 'stable_version' end;
  end if;
  if requested <> served.version then
    select v.config, v.author into version_config, version_author
    from agent_versions v where v.agent_id = agent and v.version = requested;
    if found then
      served := jsonb_populate_record(served, unset || version_config || jsonb_build_object('version', requested,
        'max_context_messages', served.max_context_messages, 'single_session_per_actor', served.single_session_per_actor));
      served.author := version_author;
    end if;
  end if;
  return next served;
end $$;

-- A tool or agent that other projects may call.
create table shares (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  resource_kind text not null check (resource_kind in ('tool', 'agent')),
  -- Loose: shares of a deleted resource remain, revoked.
  resource_id text not null,
  actions text[] not null,
  -- A project, loose, or * for all projects.
  grantee text not null,
  -- { calls, window }; null without a limit.
  cap jsonb,
  expires_at timestamptz(3), suspended_at timestamptz(3), revoked_at timestamptz(3),
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);
create index shares_project on shares (project_id, created_at desc, id desc);
create index shares_grantee on shares (grantee, created_at desc, id desc);
-- Read by each call through a share.
create index shares_resource on shares (resource_id);
create index shares_expiring on shares (expires_at) where expires_at is not null and revoked_at is null;

create table share_acceptances (
  id text primary key,
  share_id text not null references shares (id) on delete cascade,
  project_id text not null references projects (id) on delete cascade,
  status text not null check (status in ('active', 'revoked')),
  revoked_by text check (revoked_by in ('publisher', 'consumer')),
  accepted_at timestamptz(3) not null default now(),
  revoked_at timestamptz(3),
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  unique (share_id, project_id)
);
create index share_acceptances_share on share_acceptances (share_id, created_at desc, id desc);
create index share_acceptances_project on share_acceptances (project_id, share_id);

-- Calls in the windows of caps.
create table share_counters (
  acceptance_id text not null references share_acceptances (id) on delete cascade,
  window_key text not null, window_start timestamptz(3) not null, calls integer not null,
  primary key (acceptance_id, window_key)
) with (fillfactor = 50);
create index share_counters_start on share_counters (window_start);

-- Calls per hour, for the publisher.
create table share_usage (
  share_id text not null references shares (id) on delete cascade,
  project_id text not null references projects (id) on delete cascade,
  hour timestamptz(3) not null, calls bigint not null, refused bigint not null,
  primary key (share_id, project_id, hour)
) with (fillfactor = 50);
create index share_usage_project on share_usage (project_id);
create index share_usage_hour on share_usage (hour);

-- A tree of turns. The row is updated when its turn ends and when its steps get their file; no index reads the changed
-- columns, and pages keep space for the update, so that five indexes are written once.
create table traces (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  -- Project of the agent, if it is another one. Such a turn outlives the agent; others are deleted with it by triggers.
  publisher_project_id text,
  agent_id text not null, step_count integer not null default 0,
  parent_trace_id text references traces (id) on delete set null,
  root_trace_id text references traces (id) on delete set null,
  error jsonb,
  notes jsonb not null default '[]',
  -- Steps of settled turns. Loose: refuse_file_of_trace.
  file_id text,
  content_redacted_at timestamptz(3),
  content_redacted_by_principal_type text, content_redacted_by_principal_id text,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
) with (fillfactor = 45);
create index traces_project on traces (project_id, created_at, id);
create index traces_agent on traces (agent_id);
create index traces_parent on traces (parent_trace_id) where parent_trace_id is not null;
create index traces_root on traces (root_trace_id) where root_trace_id is not null;
-- Serves the daily erasure.
create index traces_kept on traces (project_id, created_at, id) where parent_trace_id is null and content_redacted_at is null;

-- The record of a turn, written three times. No index reads the columns that change, and pages keep space for the two
-- updates, so that the indexes are written once.
create table generations (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  publisher_project_id text, agent_id text not null,
  trace_id text not null references traces (id) on delete cascade,
  agent_version integer,
  -- Version given at the creation; null for a turn that gets it at its start.
  assigned_version integer,
  initiator_generation_id text references generations (id) on delete set null,
  -- Loose, down to the principal.
  chain_id text,
  conversation_id text, session_id text, actor_id text, trigger_id text, orchestration_run_id text,
  node_id text, node_attempt integer,
  started_by_principal_type text, started_by_principal_id text,
  status text not null default 'pending' check (status in ('pending', 'in_progress', 'requires_action', 'completed', 'failed')),
  stop_reason text, error jsonb, output jsonb, input jsonb, required_action jsonb, usage jsonb,
  -- Outcomes of the calls of a routed turn.
  routing jsonb,
  step_count integer not null default 0, action_id text, source text, metadata jsonb,
  -- Search results for the turn, and results of memory rules by their IDs.
  knowledge jsonb, extraction jsonb,
  content_redacted_at timestamptz(3),
  content_redacted_by_principal_type text, content_redacted_by_principal_id text,
  started_at timestamptz(3), completed_at timestamptz(3),
  last_activity_at timestamptz(3),
  created_at timestamptz(3) not null,
  updated_at timestamptz(3) not null,

  -- Never on the wire.
  -- Principal whose permissions apply, never a token.
  authority jsonb not null,
  -- Permission checked again when a queued turn starts: { action, kind, id }.
  permission jsonb,
  -- Fence: every write of an attempt carries its number.
  attempt integer not null default 0,
  -- Attempts lost since the last settled step.
  lost_attempts integer not null default 0,
  handed_back boolean not null default false,
  abort jsonb, streamed boolean not null default false,
  shape text not null default 'agent' check (shape in ('agent', 'conversation')),
  -- Content mode at the creation; `none` stores nothing readable.
  content_mode text not null default 'full' check (content_mode in ('full', 'none')),
  -- Writes of the journal: with the attempt it shows whether a claim has read the last one.
  journalled integer not null default 0,
  -- { tools, bytes, estimated_tokens } of the callable tools.
  tool_surface jsonb,
  deadline_at timestamptz(3),
  -- Of a turn that waits for its model without a worker: the failed attempts at the model call of the step in progress, and
  -- the time of the next one.
  model_attempts integer not null default 0, model_retry_at timestamptz
) with (fillfactor = 80);
create index generations_project on generations (project_id, created_at, id);
create index generations_agent on generations (agent_id, created_at, id);
create index generations_trace on generations (trace_id, created_at, id);
create index generations_session on generations (session_id, created_at) where session_id is not null;
create index generations_conversation on generations (conversation_id, created_at) where conversation_id is not null;
create index generations_actor on generations (actor_id, created_at) where actor_id is not null;
create index generations_initiator on generations (initiator_generation_id) where initiator_generation_id is not null;
create index generations_chain on generations (chain_id, created_at) where chain_id is not null;
create index generations_run on generations (orchestration_run_id, created_at) where orchestration_run_id is not null;
-- With the project, because node IDs are unique only within a graph.
create index generations_node on generations (project_id, node_id, created_at) where node_id is not null;
create index generations_trigger on generations (trigger_id, created_at) where trigger_id is not null;
-- Paused turns, by the tool calls that they wait for. The condition reads a column that only pauses change: with one on the
-- status, each of the two updates of every turn would write all indexes of the table.
create index generations_paused on generations (agent_id, project_id) where required_action is not null;
call count_table('generations');

-- Replace a foreign key, which cannot distinguish turns of agents of other projects.
create function lock_agent_of_turn() returns trigger language plpgsql as $$
begin
  perform 1 from agents where id = new.agent_id for key share;
  if not found then
    raise exception 'the agent % of % does not exist', new.agent_id, tg_table_name
      using errcode = 'foreign_key_violation', constraint = tg_table_name || '_agent_id_fkey', table = tg_table_name;
  end if;
  return null;
end $$;
create trigger generations_agent after insert on generations for each row when (new.publisher_project_id is null)
  execute function lock_agent_of_turn();
create trigger traces_agent after insert on traces for each row when (new.publisher_project_id is null)
  execute function lock_agent_of_turn();

create function delete_turns_of_agent() returns trigger language plpgsql as $$
begin
  delete from generations where agent_id = old.id and publisher_project_id is null;
  delete from traces where agent_id = old.id and publisher_project_id is null;
  return null;
end $$;
create trigger agents_turns after delete on agents for each row execute function delete_turns_of_agent();

-- Settled steps that are not yet in the file of their trace. In content mode `none`: counters and usage only.
create table generation_steps (
  generation_id text not null references generations (id) on delete cascade,
  n integer not null, text text, finish_reason text, model text, ai_provider_id text,
  tool_calls jsonb not null default '[]',
  tool_results jsonb not null default '[]',
  usage jsonb,
  started_at timestamptz(3) not null, completed_at timestamptz(3) not null,
  -- Parts that a vendor requires back with the calls of the step until its turn ends, such as signed reasoning; changes of the
  -- request for its vendor.
  vendor_parts jsonb, notes jsonb,
  -- Sources that the answer cites.
  annotations jsonb,
  -- As in usage_events.
  served_model text, service_tier text,
  primary key (generation_id, n)
);

-- A row per unsettled turn, with its turn data: messages, system blocks, overrides.
create table generation_work (
  generation_id text primary key references generations (id) on delete cascade,
  -- Null in content mode `none`.
  sealed text
);
-- Turn data in content mode `none`. Unlogged, here and in other tables, so that neither the log nor a backup of it has it.
create unlogged table generation_work_unlogged (
  generation_id text primary key references generations (id) on delete cascade,
  sealed text not null
);

-- The step in progress of a turn: at position 0 the response of the model, from 1 on a row per started call; without a body
-- its outcome is unknown. In content mode `none` also the settled steps, at position 0.
create table generation_journal (
  generation_id text not null references generations (id) on delete cascade,
  n integer not null, position integer not null, body text,
  primary key (generation_id, n, position)
);
create unlogged table generation_journal_unlogged (like generation_journal including all);
alter table generation_journal_unlogged add foreign key (generation_id) references generations (id) on delete cascade;

-- Frames of streams, stored for ten minutes after the end. Sealed in content mode `none`.
create unlogged table stream_frames (
  generation_id text not null references generations (id) on delete cascade,
  seq integer not null, event text not null, data text not null,
  created_at timestamptz(3) not null default now(),
  primary key (generation_id, seq)
);
create index stream_frames_created on stream_frames (created_at);

-- Turns that other turns started after the request of the first had ended.
create table chains (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  -- Loose, both.
  agent_id text not null,
  root_generation_id text not null unique,
  -- As written; an active chain without an unsettled turn is presented as concluded.
  status text not null default 'active' check (status in ('active', 'expired', 'budget_exhausted')),
  generation_count integer not null default 1, "limit" integer not null,
  limit_source text not null check (limit_source in ('agent', 'project', 'platform', 'stopped')),
  last_generation_at timestamptz(3) not null, stopped_at timestamptz(3),
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);
create index chains_project on chains (project_id, created_at, id);
create index chains_agent on chains (agent_id, created_at, id);

create table approvals (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  origin text not null check (origin in ('node', 'tool_call', 'task_transition')),
  status text not null default 'pending' check (status in ('pending', 'approved', 'rejected', 'expired')),
  proposed_action json, reasoning text, evidence json, predicted_impact text,
  expires_at timestamptz(3) not null, dedup_key text,
  -- Loose, all IDs.
  orchestration_run_id text, node_id text, generation_id text, session_id text, agent_id text,
  -- Version of the agent that proposed the call: it may define the tool in a binding.
  agent_version integer,
  conversation_id text, task_id text, task_transition text, policy_version text,
  previous_item_id text, resolved_by text, resolution_reason text, edited_arguments json,
  -- Outcome of the call: { status, result_digest, error, generation_id, finished_at }.
  execution json,
  tool_type text,
  -- Principal of the call, and the permission that is checked before it.
  authority jsonb, permission jsonb,
  -- Users with a part in the start of the work, who may not resolve the item if that is forbidden.
  starters text[] not null default '{}',
  forbid_self_approval boolean not null default false,
  content_mode text not null default 'full' check (content_mode in ('full', 'none')),
  -- Arguments and contexts of the call; null once they are no longer needed.
  sealed text,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  approver text not null default 'operator' check (approver in ('operator', 'end_user')),
  -- What the end user sees: a title, null for an operator, and the names of the arguments.
  title text,
  end_user_arguments text[] not null default '{}',
  -- Loose, both: end user who resolved the item, and the turn that continues after the decision.
  resolved_by_actor_id text,
  continuation_id text
);
create index approvals_project on approvals (project_id, created_at desc, id desc);
-- Most reads are of pending items.
create index approvals_pending on approvals (project_id, created_at desc, id desc) where status = 'pending';
create index approvals_expiry on approvals (expires_at) where status = 'pending';
create unique index approvals_dedup on approvals (project_id, dedup_key) where status = 'pending';
create index approvals_recurrences on approvals (project_id, dedup_key, created_at desc) where dedup_key is not null;
create index approvals_agent on approvals (agent_id, created_at desc, id desc) where agent_id is not null;
create index approvals_session on approvals (session_id, created_at desc, id desc) where session_id is not null;
create index approvals_generation on approvals (generation_id) where generation_id is not null;
create index approvals_run on approvals (orchestration_run_id, id) where orchestration_run_id is not null;
create index approvals_task on approvals (task_id, id) where task_id is not null;

-- Work items have their message as lease. The row has the fence and `due_at`: when a queued item is due, when a running one
-- was claimed. It is deleted when the item settles.
-- Follow-ups of resolved and expired approvals.
create table approval_attempts (
  approval_id text primary key references approvals (id) on delete cascade,
  id text not null unique,
  state text not null default 'queued' check (state in ('queued', 'running')),
  due_at timestamptz(3) not null default now(),
  -- Claims by workers: the number fences late writers. Here and in other tables of work items.
  claims integer not null default 0,
  -- Claims whose worker was silent for a lease.
  losses integer not null default 0,
  failures integer not null default 0,
  -- The call was about to be made. Its outcome is unknown unless it is set.
  executing boolean not null default false,
  outcome text,
  created_at timestamptz(3) not null default now()
);
create index approval_attempts_due on approval_attempts (due_at);

-- Questions that an agent or a tool answers.
create table deciders (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null, description text,
  agent_id text references agents (id),
  tool_id text references tools (id),
  version integer not null default 1,
  questions json not null,
  escalate_below double precision,
  author jsonb,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  check ((agent_id is null) <> (tool_id is null))
);
create index deciders_project on deciders (project_id, created_at desc, id desc);
create unique index deciders_name on deciders (project_id, name);
create index deciders_agent on deciders (agent_id) where agent_id is not null;
create index deciders_tool on deciders (tool_id) where tool_id is not null;
create index deciders_author on deciders ((author ->> 'id'));

create table decider_versions (
  id text primary key,
  decider_id text not null references deciders (id) on delete cascade,
  version integer not null check (version >= 1),
  config json not null, label text, created_by text, author jsonb,
  created_at timestamptz(3) not null default now(),
  unique (decider_id, version)
);

-- Answers to one input.
create table decisions (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  -- Loose, all of these.
  decider_id text,
  decider_version integer, agent_id text, agent_version integer, tool_id text, generation_id text,
  -- Questions at the time of the decision.
  asked json not null,
  status text not null default 'queued' check (status in ('queued', 'running', 'completed', 'failed')),
  answers json, error jsonb, metadata json,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
) with (fillfactor = 80);
create index decisions_project on decisions (project_id, created_at, id);
create index decisions_decider on decisions (decider_id, created_at, id) where decider_id is not null;
create unique index decisions_generation on decisions (generation_id) where generation_id is not null;
-- Decisions whose turn may be orphaned.
create index decisions_asking on decisions (created_at, id) where status = 'running' and generation_id is not null;
call count_table('decisions');

-- Decisions of tools, and decisions of agents until their turn starts.
create table decision_attempts (
  decision_id text primary key references decisions (id) on delete cascade,
  id text not null unique,
  state text not null default 'queued' check (state in ('queued', 'running')),
  due_at timestamptz(3) not null default now(),
  claims integer not null default 0, losses integer not null default 0, failures integer not null default 0,
  -- Principal that requested it: { type, id, via }, and the permission that is checked again: { action, kind, id }.
  principal jsonb not null, permission jsonb not null,
  -- Whether the tool may have been called.
  called boolean not null default false,
  created_at timestamptz(3) not null default now()
);
create index decision_attempts_due on decision_attempts (due_at);

-- Inputs of decisions, until the decision settles or its turn starts.
create table decision_inputs (
  decision_id text primary key references decisions (id) on delete cascade,
  sealed text not null
);
create unlogged table decision_inputs_unlogged (
  decision_id text primary key references decisions (id) on delete cascade,
  sealed text not null
);

-- Handlers that extract memories from turns.
create table memory_rules (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  memory_store_id text not null references memory_stores (id) on delete cascade,
  "on" text not null check ("on" in ('generations.completed', 'conversation_messages.generated')),
  -- Loose.
  source_agent_ids text[],
  agent_id text references agents (id),
  tool_id text references tools (id),
  action text, preset_parameters json, prompt text,
  ai_provider_id text references ai_providers (id),
  model text, enabled boolean not null default true, disabled_reason text,
  -- Principal of the handler: { type, id, via }.
  authority jsonb not null,
  -- Consecutive failed firings.
  failures integer not null default 0,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  -- Whether it extracts facts from turns of evaluations, whose inputs are test data.
  include_evaluations boolean not null default false,
  check (agent_id is null or tool_id is null)
);
create index memory_rules_project on memory_rules (project_id, created_at desc, id desc);
create index memory_rules_store on memory_rules (memory_store_id);
create index memory_rules_agent on memory_rules (agent_id) where agent_id is not null;
create index memory_rules_tool on memory_rules (tool_id) where tool_id is not null;
create index memory_rules_ai_provider on memory_rules (ai_provider_id) where ai_provider_id is not null;
create index memory_rules_author on memory_rules ((authority ->> 'id'));
alter table memory_entries add foreign key (memory_rule_id) references memory_rules (id) on delete set null;

-- One per rule and turn, inserted in the transaction that completes the turn.
create table memory_rule_firings (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  memory_rule_id text not null references memory_rules (id) on delete cascade,
  generation_id text not null references generations (id) on delete cascade,
  -- 'asked': the turn of the handler is in progress.
  state text not null default 'queued' check (state in ('queued', 'running', 'asked', 'done', 'failed')),
  -- Next attempt of a queued firing, claim of a running one, latest expected end of the turn of an 'asked' one. Null when it
  -- has settled.
  due_at timestamptz(3) default now(),
  claims integer not null default 0, losses integer not null default 0,
  -- Failed attempts of the handler.
  failures integer not null default 0,
  handler_generation_id text,
  -- Response of the handler, erased at the end.
  facts jsonb,
  candidates integer not null default 0,
  -- The first candidates, which were written or refused.
  written integer not null default 0,
  created integer not null default 0, superseded integer not null default 0,
  skipped integer not null default 0, failed integer not null default 0,
  created_at timestamptz(3) not null default now(),
  settled_at timestamptz(3),
  unique (memory_rule_id, generation_id)
) with (fillfactor = 70);
create index memory_rule_firings_due on memory_rule_firings (due_at, id);
create index memory_rule_firings_generation on memory_rule_firings (generation_id);
create index memory_rule_firings_project on memory_rule_firings (project_id);
create index memory_rule_firings_handler on memory_rule_firings (handler_generation_id) where state = 'asked';
create index memory_rule_firings_settled on memory_rule_firings (settled_at) where settled_at is not null;

-- Tickets that open one stream, in place of a credential.
create table stream_tickets (
  -- SHA-256 of the ticket.
  hash bytea primary key,
  project_id text not null references projects (id) on delete cascade,
  -- ID of the session or generation.
  target_id text not null,
  -- The credential that opens the stream.
  sealed text not null,
  expires_at timestamptz(3) not null
);
create index stream_tickets_expires on stream_tickets (expires_at);
