-- Bound of the model context, summaries of older messages, titles of sessions, and what front ends show of an agent.

alter table agents
  add column context_policy jsonb,
  -- Route in context_policy, as a column for the reference.
  add column summary_model_route_id text references model_routes (id),
  add column auto_title boolean not null default false,
  add column description text,
  add column avatar_file_id text references files (id),
  add column greeting text,
  add column suggestions text[];
create index agents_summary_model_route on agents (summary_model_route_id) where summary_model_route_id is not null;
create index agents_avatar_file on agents (avatar_file_id) where avatar_file_id is not null;

-- Bytes of a token in the last request of a turn with a context policy, by the metered input.
alter table conversations add column bytes_per_token real;

-- Summary of the messages up to a position, deleted with any of them.
create table conversation_summaries (
  conversation_id text primary key references conversations (id) on delete cascade,
  up_to_position integer not null,
  text text not null,
  tokens integer not null,
  -- Loose: the agent whose model wrote it.
  agent_id text not null, agent_version integer not null,
  created_at timestamptz(3) not null default now()
);

create table conversation_summary_work (
  conversation_id text primary key references conversations (id) on delete cascade,
  id text not null unique,
  state text not null default 'queued' check (state in ('queued', 'running')),
  due_at timestamptz(3) not null default now(),
  claims integer not null default 0, losses integer not null default 0, failures integer not null default 0,
  -- Loose: agent of the turn, in its version.
  agent_id text not null, agent_version integer not null,
  -- Tokens that the request of the turn left to messages.
  history_tokens integer not null
);
create index conversation_summary_work_due on conversation_summary_work (due_at);

-- Name generated from messages; erased with the content of the end user.
alter table sessions add column auto_name text;

create table session_title_work (
  conversation_id text primary key references conversations (id) on delete cascade,
  id text not null unique,
  state text not null default 'queued' check (state in ('queued', 'running')),
  due_at timestamptz(3) not null default now(),
  claims integer not null default 0, losses integer not null default 0, failures integer not null default 0,
  -- Loose: agent of the turn, in its version.
  agent_id text not null, agent_version integer not null
);
create index session_title_work_due on session_title_work (due_at);
