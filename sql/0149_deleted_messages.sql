-- What a purge of an end user still needs of messages and conversations that were deleted before. No content.

-- Messages of which events may still speak: those of an actor's conversations, and those that it wrote elsewhere.
create table deleted_messages (
  actor_id text not null references actors (id) on delete cascade,
  document_id text not null,
  deleted_at timestamptz not null default now(),
  primary key (actor_id, document_id)
);
create index deleted_messages_deleted_at on deleted_messages (deleted_at);

-- Conversations that memories may still name as their source.
create table deleted_conversations (
  actor_id text not null references actors (id) on delete cascade,
  conversation_id text not null,
  primary key (actor_id, conversation_id)
);
