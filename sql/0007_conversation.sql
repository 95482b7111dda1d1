-- Chats, actors, conversations, sessions.

-- Settings of model completions, without history.
create table chats (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  -- Null: the default model route of the project.
  ai_provider_id text references ai_providers (id),
  name text, instructions text, model text,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  check (model is null or ai_provider_id is not null)
);
create index chats_project on chats (project_id, created_at desc, id desc);
create index chats_ai_provider on chats (ai_provider_id) where ai_provider_id is not null;
create index chats_inheriting on chats (project_id) where ai_provider_id is null;

-- End users and personas.
create table actors (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null, external_id text, instructions text,
  agent_id text references agents (id) on delete set null,
  chat_id text references chats (id) on delete set null,
  metadata jsonb,
  tags jsonb not null default '{}',
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  check (agent_id is null or chat_id is null)
);
create index actors_project on actors (project_id, created_at desc, id desc);
create unique index actors_external_id on actors (project_id, external_id) where external_id is not null;
create index actors_agent on actors (agent_id) where agent_id is not null;
create index actors_chat on actors (chat_id) where chat_id is not null;
create index actors_tags on actors using gin (tags jsonb_path_ops);
call count_table('actors');

-- Memories are deleted with their end user. Their events are written by the code that deletes the actor.
alter table memories add foreign key (actor_id) references actors (id) on delete cascade;
alter table memory_entries add foreign key (actor_id) references actors (id) on delete cascade;

-- Work items: erasure of the content of an end user.
create table actor_purges (
  actor_id text primary key references actors (id) on delete cascade,
  id text not null unique,
  state text not null default 'queued' check (state in ('queued', 'running')),
  due_at timestamptz(3) not null default now(),
  claims integer not null default 0, losses integer not null default 0, failures integer not null default 0,
  -- Principal that requested it: { type, id, via }.
  principal jsonb not null,
  -- Later content is not erased. Null in the first of two passes: a turn that begins during it may have read content
  -- before its erasure.
  until timestamptz(3),
  -- Number of erased rows by kind.
  counts jsonb not null default '{}',
  created_at timestamptz(3) not null default now()
);
create index actor_purges_due on actor_purges (due_at);

create table conversations (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text,
  status text not null default 'open' check (status in ('open', 'closed')),
  actor_id text references actors (id) on delete set null,
  -- Written by sessions, with the session.
  session_id text,
  tags jsonb not null default '{}',
  message_count integer not null default 0,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);
create index conversations_project on conversations (project_id, created_at desc, id desc);
create index conversations_actor on conversations (actor_id) where actor_id is not null;
create index conversations_session on conversations (session_id) where session_id is not null;
create index conversations_tags on conversations using gin (tags jsonb_path_ops);

-- A message has its text in a document, which several conversations may share (forks).
create table conversation_messages (
  conversation_id text not null references conversations (id) on delete cascade,
  -- Loose: without its text a message is empty.
  document_id text not null,
  position integer not null check (position >= 0),
  role text not null check (role in ('user', 'assistant')),
  actor_id text references actors (id) on delete set null,
  -- Loose: the history still shows which agent replied.
  agent_id text,
  generation_id text references generations (id) on delete set null,
  -- Turn that a user message requested; stored for messages with an idempotency key, whose repeats return it.
  requested_generation_id text references generations (id) on delete set null,
  metadata jsonb,
  -- Tool calls and results of a generated reply, as model messages; replayed, never presented.
  history jsonb,
  idempotency_key text,
  created_at timestamptz(3) not null default now(),
  primary key (conversation_id, document_id),
  -- Deferrable: an insert moves all later messages in one statement. Serves every read in order.
  constraint conversation_messages_position unique (conversation_id, position) deferrable initially immediate
);
create unique index conversation_messages_idempotency on conversation_messages (conversation_id, idempotency_key)
  where idempotency_key is not null;
create index conversation_messages_actor on conversation_messages (actor_id, conversation_id) where actor_id is not null;
create index conversation_messages_generation on conversation_messages (generation_id) where generation_id is not null;
create index conversation_messages_requested on conversation_messages (requested_generation_id)
  where requested_generation_id is not null;
-- Other messages of a text.
create index conversation_messages_document on conversation_messages (document_id);

-- The mailbox of a conversation. Messages of the queue are wake-ups only.
create table conversation_turns (
  conversation_id text not null references conversations (id) on delete cascade,
  -- Order of acceptance, allocated under the row lock of the conversation.
  seq integer not null,
  kind text not null check (kind in ('turn', 'auto', 'tool_outputs', 'continuation')),
  -- A turn has a generation, or the payload of a chat.
  generation_id text references generations (id) on delete cascade,
  -- Loose: the chat may be deleted while the turn waits.
  chat_id text,
  actor_id text references actors (id) on delete set null,
  payload jsonb not null default '{}',
  principal_type text not null, principal_id text not null,
  not_before timestamptz(3),
  state text not null default 'queued' check (state in ('queued', 'running', 'done', 'failed', 'cancelled')),
  -- Fence: only the last claim settles a turn.
  attempt integer not null default 0,
  -- Position of the last message that the turn read; moves with that message.
  seen_position integer,
  created_at timestamptz(3) not null default now(),
  started_at timestamptz(3), settled_at timestamptz(3),
  primary key (conversation_id, seq),
  constraint conversation_turns_answered check ((generation_id is null) <> (chat_id is null))
);
-- Serves the choice of the handler and the sweep.
create index conversation_turns_open on conversation_turns (conversation_id, seq) where state in ('queued', 'running');
create unique index conversation_turns_running on conversation_turns (conversation_id) where state = 'running';
create index conversation_turns_generation on conversation_turns (generation_id);
create index conversation_turns_actor on conversation_turns (actor_id) where actor_id is not null;

-- One end user, one agent, one conversation.
create table sessions (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  -- No foreign key: sessions with an agent of another project outlive it; others are deleted with it by the delete, which
  -- locks its row.
  agent_id text not null,
  conversation_id text not null unique references conversations (id) on delete cascade,
  -- An open session after expires_at counts as expired, before the sweep updates it.
  status text not null default 'open' check (status in ('open', 'closed', 'expired')),
  name text,
  actor_id text references actors (id) on delete set null,
  tags jsonb not null default '{}',
  auto_generate boolean not null default false,
  message_delay_seconds integer check (message_delay_seconds between 0 and 3600),
  inactivity_ttl_seconds integer not null default 0 check (inactivity_ttl_seconds between 0 and 31536000),
  tool_context jsonb,
  -- Merged over the configuration of the agent.
  knowledge_config jsonb,
  last_activity_at timestamptz(3),
  forked_from_session_id text references sessions (id) on delete set null,
  forked_from_position integer,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),

  -- Never on the wire.
  -- Last activity, or creation, plus the TTL; null without a TTL.
  expires_at timestamptz(3),
  -- Turns that were aborted in favour of another one.
  takeovers integer not null default 0
);
create index sessions_project on sessions (project_id, created_at desc, id desc);
create index sessions_agent on sessions (agent_id, created_at desc, id desc);
create index sessions_actor on sessions (actor_id, agent_id) where actor_id is not null;
create index sessions_forks on sessions (forked_from_session_id, created_at desc, id desc)
  where forked_from_session_id is not null;
create index sessions_tags on sessions using gin (tags jsonb_path_ops);
create index sessions_expiry on sessions (expires_at, id) where status = 'open' and expires_at is not null;

-- A conversation is deleted with its session. Checked at the commit, because the two rows refer to each other.
alter table conversations add constraint conversations_session_fkey
  foreign key (session_id) references sessions (id) on delete cascade deferrable initially deferred;

-- IDs that a purge of an end user needs after messages and conversations were deleted, without content.

-- Messages that events may contain: of the conversations of an actor, and its messages elsewhere.
create table deleted_messages (
  actor_id text not null references actors (id) on delete cascade,
  document_id text not null,
  deleted_at timestamptz not null default now(),
  primary key (actor_id, document_id)
);
create index deleted_messages_deleted_at on deleted_messages (deleted_at);

-- Conversations that memories may have as source.
create table deleted_conversations (
  actor_id text not null references actors (id) on delete cascade,
  conversation_id text not null,
  primary key (actor_id, conversation_id)
);
