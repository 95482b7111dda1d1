-- Sessions: one end user, one agent, one conversation (conversation, 10).

create table sessions (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  agent_id text not null references agents (id) on delete cascade,
  conversation_id text not null unique references conversations (id) on delete cascade,
  -- An open session that is past expires_at counts as expired from then on, written down or not.
  status text not null default 'open' check (status in ('open', 'closed', 'expired')),
  name text,
  actor_id text references actors (id) on delete set null,
  tags jsonb not null default '{}',
  auto_generate boolean not null default false,
  message_delay_seconds integer check (message_delay_seconds between 0 and 3600),
  inactivity_ttl_seconds integer not null default 0 check (inactivity_ttl_seconds between 0 and 31536000),
  tool_context jsonb,
  last_activity_at timestamptz(3),
  forked_from_session_id text references sessions (id) on delete set null,
  forked_from_position integer,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now(),

  -- Never on the wire.
  -- The last activity, or the creation, plus the time to live; null without one.
  expires_at timestamptz(3),
  -- How often a turn was aborted in favour of another one.
  takeovers integer not null default 0
);
create index sessions_project on sessions (project_id, created_at desc, id desc);
create index sessions_agent on sessions (agent_id, created_at desc, id desc);
create index sessions_actor on sessions (actor_id, agent_id) where actor_id is not null;
create index sessions_forks on sessions (forked_from_session_id, created_at desc, id desc) where forked_from_session_id is not null;
create index sessions_tags on sessions using gin (tags jsonb_path_ops);
-- Serves the expiry sweep.
create index sessions_expiry on sessions (expires_at, id) where status = 'open' and expires_at is not null;

-- A conversation goes with its session. Checked at the commit: the two rows name each other.
alter table conversations add constraint conversations_session_fkey
  foreign key (session_id) references sessions (id) on delete cascade deferrable initially deferred;
create index conversations_session on conversations (session_id) where session_id is not null;

-- The turn that a user message asked for; kept for messages with an idempotency key, whose repeat answers it again.
alter table conversation_messages add column requested_generation_id text references generations (id) on delete set null;
create index conversation_messages_requested on conversation_messages (requested_generation_id)
  where requested_generation_id is not null;
