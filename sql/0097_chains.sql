-- Chains: turns that grew out of one another after the request of the first was gone.

create table chains (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  -- Loose, both: a chain outlives its turns and their agent.
  agent_id text not null,
  root_generation_id text not null unique,
  -- As written; an active one in which nothing is under way any more reads as concluded.
  status text not null default 'active' check (status in ('active', 'expired', 'budget_exhausted')),
  generation_count integer not null default 1,
  "limit" integer not null,
  limit_source text not null check (limit_source in ('agent', 'project', 'platform', 'stopped')),
  last_generation_at timestamptz(3) not null,
  stopped_at timestamptz(3),
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index chains_project on chains (project_id, created_at, id);
create index chains_agent on chains (agent_id, created_at, id);

create index generations_chain on generations (chain_id, created_at) where chain_id is not null;

-- A turn of a conversation that a chat answers has no generation: what it was asked with and what came of it is its payload.
alter table conversation_turns
  alter column generation_id drop not null,
  -- Loose: the chat may be deleted while the turn waits.
  add column chat_id text,
  -- Fence: a turn is settled by the worker that took it last.
  add column attempt integer not null default 0,
  add constraint conversation_turns_answered check ((generation_id is null) <> (chat_id is null));

-- Sessions with an agent that another project shares outlive it; those of its own project go with it, by the delete that
-- holds its row. So no foreign key tells the two apart.
alter table sessions drop constraint sessions_agent_id_fkey;
