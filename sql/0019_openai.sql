-- Clients of the OpenAI protocol: agents as models, and conversations found by a key of the client.

alter table agents
  -- System texts of a client: ignored, given as a block of the user, or added to the instructions.
  add column client_instructions text not null default 'block' check (client_instructions in ('ignore', 'block', 'system')),
  add column accept_client_tools boolean not null default false,
  -- Settings of requests that take effect; null for none.
  add column request_settings text[];

alter table sessions
  -- Holds the end user of single turns; deleted a day after its creation.
  add column ephemeral boolean not null default false;
create index sessions_ephemeral on sessions (created_at, id) where ephemeral;

-- Sessions by the keys that clients use for their conversations.
create table session_keys (
  project_id text not null references projects (id) on delete cascade,
  -- No foreign key, as in sessions.
  agent_id text not null,
  actor_id text references actors (id) on delete cascade,
  key text not null,
  session_id text not null references sessions (id) on delete cascade,
  unique nulls not distinct (project_id, agent_id, actor_id, key)
);
create index session_keys_session on session_keys (session_id);
create index session_keys_actor on session_keys (actor_id) where actor_id is not null;

-- Turns by the request that began or resumed them, so that the retry of a client attaches to its turn.
create table turn_requests (
  credential_id text not null,
  body_hash bytea not null,
  generation_id text not null references generations (id) on delete cascade,
  -- Steps and frames of the turn before this request.
  after_step integer not null default 0,
  after_frame integer not null default 0,
  created_at timestamptz(3) not null default now()
);
create index turn_requests_hash on turn_requests (credential_id, body_hash, created_at desc);
create index turn_requests_generation on turn_requests (generation_id);
create index turn_requests_created on turn_requests (created_at);

-- Hashes of the texts of replies with several steps as clients of the mount receive them.
create table reply_hashes (
  generation_id text primary key references generations (id) on delete cascade,
  hash bytea not null
);

-- Paused turns, by the tool calls that they wait for.
create index generations_paused on generations (agent_id, project_id) where status = 'requires_action';
