-- End users and personas, conversations, their messages and the turns that wait in their mailboxes.

create table actors (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  external_id text,
  instructions text,
  agent_id text references agents (id) on delete set null,
  chat_id text,
  metadata jsonb,
  tags jsonb not null default '{}',
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now(),
  check (agent_id is null or chat_id is null)
);
create index actors_project on actors (project_id, created_at desc, id desc);
-- One actor a project and external id; also serves the find half of find-or-create.
create unique index actors_external_id on actors (project_id, external_id) where external_id is not null;
create index actors_agent on actors (agent_id) where agent_id is not null;
create index actors_tags on actors using gin (tags jsonb_path_ops);

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
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index conversations_project on conversations (project_id, created_at desc, id desc);
create index conversations_actor on conversations (actor_id) where actor_id is not null;
create index conversations_tags on conversations using gin (tags jsonb_path_ops);

-- Texts that messages own. Messages of several conversations may point at one text (forks); a purge empties it.
create table message_texts (
  document_id text primary key,
  project_id text not null references projects (id) on delete cascade,
  content text,
  created_at timestamptz(3) not null default now()
);
create index message_texts_project on message_texts (project_id);

create table conversation_messages (
  conversation_id text not null references conversations (id) on delete cascade,
  -- Without a foreign key: a message outlives its text and then shows none.
  document_id text not null,
  position integer not null check (position >= 0),
  role text not null check (role in ('user', 'assistant')),
  actor_id text references actors (id) on delete set null,
  -- Loose: history keeps saying who answered.
  agent_id text,
  generation_id text references generations (id) on delete set null,
  metadata jsonb,
  -- Tool calls and results of a generated reply, as model messages; replayed, never shown.
  history jsonb,
  idempotency_key text,
  created_at timestamptz(3) not null default now(),
  primary key (conversation_id, document_id),
  -- Deferrable: an insertion moves all later messages up in one statement. Serves every read in order.
  constraint conversation_messages_position unique (conversation_id, position) deferrable initially immediate
);
create unique index conversation_messages_idempotency on conversation_messages (conversation_id, idempotency_key)
  where idempotency_key is not null;
create index conversation_messages_actor on conversation_messages (actor_id, conversation_id) where actor_id is not null;
create index conversation_messages_generation on conversation_messages (generation_id) where generation_id is not null;
-- Whether a text has other messages.
create index conversation_messages_document on conversation_messages (document_id);

-- The mailbox of a conversation: the rows are the truth, messages of the queue only say "look again".
create table conversation_turns (
  conversation_id text not null references conversations (id) on delete cascade,
  -- Order of acceptance, drawn under the conversation's row lock.
  seq integer not null,
  kind text not null check (kind in ('turn', 'auto', 'tool_outputs', 'continuation')),
  generation_id text not null references generations (id) on delete cascade,
  -- Who speaks.
  actor_id text references actors (id) on delete set null,
  payload jsonb not null default '{}',
  principal_type text not null,
  principal_id text not null,
  not_before timestamptz(3),
  state text not null default 'queued' check (state in ('queued', 'running', 'done', 'failed', 'cancelled')),
  -- Position of the last message the turn saw; moves with that message.
  seen_position integer,
  created_at timestamptz(3) not null default now(),
  started_at timestamptz(3),
  settled_at timestamptz(3),
  primary key (conversation_id, seq)
);
-- Serves the handler's choice and the sweep.
create index conversation_turns_open on conversation_turns (conversation_id, seq) where state in ('queued', 'running');
create unique index conversation_turns_running on conversation_turns (conversation_id) where state = 'running';
create index conversation_turns_generation on conversation_turns (generation_id);
create index conversation_turns_actor on conversation_turns (actor_id) where actor_id is not null;
