-- Shares: a project lets others call one of its tools or agents.

create table shares (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  resource_kind text not null check (resource_kind in ('tool', 'agent')),
  -- Loose: what is deleted leaves its shares behind, revoked.
  resource_id text not null,
  actions text[] not null,
  -- A project, or * for every one. Loose: a project that is gone calls nothing.
  grantee text not null,
  -- { calls, window }; null for no limit.
  cap jsonb,
  expires_at timestamptz(3),
  suspended_at timestamptz(3),
  revoked_at timestamptz(3),
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index shares_project on shares (project_id, created_at desc, id desc);
create index shares_grantee on shares (grantee, created_at desc, id desc);
-- Each call through a share asks for it by what it calls.
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
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now(),
  unique (share_id, project_id)
);
create index share_acceptances_share on share_acceptances (share_id, created_at desc, id desc);
create index share_acceptances_project on share_acceptances (project_id, share_id);

-- Calls in the windows of caps.
create table share_counters (
  acceptance_id text not null references share_acceptances (id) on delete cascade,
  window_key text not null,
  window_start timestamptz(3) not null,
  calls integer not null,
  primary key (acceptance_id, window_key)
) with (fillfactor = 50);
create index share_counters_start on share_counters (window_start);

-- Calls by the hour, for the publisher.
create table share_usage (
  share_id text not null references shares (id) on delete cascade,
  project_id text not null references projects (id) on delete cascade,
  hour timestamptz(3) not null,
  calls bigint not null,
  refused bigint not null,
  primary key (share_id, project_id, hour)
) with (fillfactor = 50);
create index share_usage_project on share_usage (project_id);
create index share_usage_hour on share_usage (hour);

-- Which pipelines name a tool.
alter table tools add column step_tool_ids text[];
update tools set step_tool_ids = named.ids
from (
  select t.id, array_agg(distinct step ->> 'tool_id') as ids
  from tools t cross join lateral json_array_elements(t.pipeline -> 'steps') step
  where step ->> 'tool_id' is not null
  group by t.id
) named
where named.id = tools.id;
create index tools_steps on tools using gin (step_tool_ids) where step_tool_ids is not null;

-- A turn of an agent of another project: the project of the agent. It outlives the agent, whose own turns go with it. So
-- triggers do what a foreign key did: they hold the agent of a turn of its own project, and delete those turns with it.
alter table generations add column publisher_project_id text;
alter table traces add column publisher_project_id text;
alter table generations drop constraint generations_agent_id_fkey;
alter table traces drop constraint traces_agent_id_fkey;

create function hold_agent_of_turn() returns trigger language plpgsql as $$
begin
  perform 1 from agents where id = new.agent_id for key share;
  if not found then
    raise exception 'the agent % of % does not exist', new.agent_id, tg_table_name
      using errcode = 'foreign_key_violation', constraint = tg_table_name || '_agent_id_fkey', table = tg_table_name;
  end if;
  return null;
end $$;
create trigger generations_agent after insert on generations for each row when (new.publisher_project_id is null)
  execute function hold_agent_of_turn();
create trigger traces_agent after insert on traces for each row when (new.publisher_project_id is null)
  execute function hold_agent_of_turn();

create function delete_turns_of_agent() returns trigger language plpgsql as $$
begin
  delete from generations where agent_id = old.id and publisher_project_id is null;
  delete from traces where agent_id = old.id and publisher_project_id is null;
  return null;
end $$;
create trigger agents_turns after delete on agents for each row execute function delete_turns_of_agent();

-- A rule may name an agent that is shared with its project, which does not hold that agent. One of its own does: the
-- delete of an agent looks for rules under the lock that their writers take.
alter table ingestion_rules drop constraint ingestion_rules_agent_id_fkey;
