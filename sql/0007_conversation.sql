-- breaking: false

-- Chats, actors with their limits and streams, conversations, sessions with their events, summaries, feedback.

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
  -- Part of every token of the end user: a revocation raises it.
  token_version integer not null default 1,
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
alter table files add foreign key (actor_id) references actors (id) on delete set null;

-- Use of a limit by an actor, or by a key for the actors that it creates, until the end of the current window. Unlogged,
-- because every call of an end user writes here: a crash of the database empties it, and all windows start again.
create unlogged table actor_limits (
  subject text not null, name text not null,
  used bigint not null,
  resets_at timestamptz(3) not null,
  primary key (subject, name)
) with (fillfactor = 50);
create index actor_limits_resets on actor_limits (resets_at);

-- Open streams of end users and projects in each web process. `holder` is the presence of the process: an advisory lock on
-- its listening connection. Rows of a process that is gone do not count, and are deleted by the next stream of the subject.
-- Unlogged: a crash of the database ends the connections, after which every process writes its rows again.
create unlogged table open_streams (
  -- ID of an actor or project.
  subject text not null,
  holder bigint not null,
  streams integer not null,
  primary key (subject, holder)
) with (fillfactor = 50);

-- Sets the numbers of open streams of a process: as many as requested up to the maximum over all processes, at least those kept.
create function set_open_streams(process bigint, subjects text[], kept integer[], wanted integer[], maximums integer[])
returns table (set_subject text, allowed integer, others integer) language plpgsql as $$
begin
  for n in 1 .. cardinality(subjects) loop
    set_subject := subjects[n];
    if wanted[n] > kept[n] then
      perform pg_advisory_xact_lock(hashtextextended('open streams ' || set_subject, 0));
    end if;
    delete from open_streams t where t.subject = set_subject and t.holder <> process
      and pg_try_advisory_xact_lock_shared(t.holder);
    select coalesce(sum(t.streams), 0) into others from open_streams t where t.subject = set_subject and t.holder <> process;
    allowed := greatest(kept[n], least(wanted[n], maximums[n] - others));
    if allowed = 0 then
      delete from open_streams t where t.subject = set_subject and t.holder = process;
    else
      insert into open_streams as t (subject, holder, streams) values (set_subject, process, allowed)
        on conflict (subject, holder) do update set streams = excluded.streams;
    end if;
    return next;
  end loop;
end $$;

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
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  -- Whether a stream of the session was ever opened: only then frames are written and its turns are streamed.
  streamed boolean not null default false,
  frame_seq bigint not null default 0,
  -- Bytes of a token in the last request of a turn with a context policy, by the metered input.
  bytes_per_token real,
  -- Why it has no summary of its older messages, although one was requested.
  summary_error jsonb
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
  -- Who caused it: an end user, a turn of an agent, an operator, the continuation after an approval, or the platform. Null:
  -- by the role.
  origin text check (origin in ('end_user', 'agent', 'operator', 'approval', 'system')),
  -- Images, files and documents as sent; the text form of the message is its text. Descriptions of images, by file ID, for
  -- models that take no images.
  parts jsonb, media_descriptions jsonb,
  -- Files of the parts, loose: a file that a purge deletes leaves its ID.
  file_ids text[],
  -- Loose: user who wrote an operator message.
  operator_id text,
  -- Whether the platform wrote it, as a note on a takeover or handback: the model reads it in a separate form.
  note boolean not null default false,
  primary key (conversation_id, document_id),
  -- Deferrable: an insert moves all later messages in one statement. Serves every read in order.
  constraint conversation_messages_position unique (conversation_id, position) deferrable initially immediate
);
-- Keys of operators do not meet keys of end users.
create unique index conversation_messages_idempotency on conversation_messages (conversation_id, idempotency_key, operator_id)
  nulls not distinct where idempotency_key is not null;
create index conversation_messages_files on conversation_messages using gin (file_ids) where file_ids is not null;
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
  takeovers integer not null default 0,
  -- Set when the end user deletes the session, which is then visible to operators only.
  hidden_at timestamptz(3),
  -- Highest position that the end user has seen.
  read_position integer,
  -- Who replies: its agent, or a person, who may be assigned.
  control text not null default 'agent' check (control in ('agent', 'operator')),
  assigned_to text references users (id) on delete set null,
  -- Request for a person: { reason, urgency, since, by }.
  attention jsonb,
  takeover_timeout_seconds integer check (takeover_timeout_seconds between 1 and 31536000),
  -- Never on the wire: takeover or latest operator message, plus the timeout; null without either.
  operator_until timestamptz(3),
  -- Never on the wire: of the turn that answers after the handback: { authority, permission }. Null under the agent.
  reply_permit jsonb,
  -- Name generated from messages; erased with the content of the end user.
  auto_name text,
  -- Holds the end user of single turns; deleted a day after its creation.
  ephemeral boolean not null default false,
  -- State that the agent shares with its client.
  state jsonb,
  -- Why it has no name, although one was requested.
  title_error jsonb
);
create index sessions_project on sessions (project_id, created_at desc, id desc);
create index sessions_agent on sessions (agent_id, created_at desc, id desc);
create index sessions_actor on sessions (actor_id, agent_id) where actor_id is not null;
create index sessions_forks on sessions (forked_from_session_id, created_at desc, id desc)
  where forked_from_session_id is not null;
create index sessions_tags on sessions using gin (tags jsonb_path_ops);
create index sessions_expiry on sessions (expires_at, id) where status = 'open' and expires_at is not null;
create index sessions_assigned on sessions (assigned_to) where assigned_to is not null;
create index sessions_operated on sessions (project_id, created_at desc, id desc) where control = 'operator';
create index sessions_attention on sessions (project_id, created_at desc, id desc) where attention is not null;
create index sessions_operator_until on sessions (operator_until, id) where operator_until is not null;
create index sessions_ephemeral on sessions (created_at, id) where ephemeral;

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

-- Events of session streams, as references: content is read when they are sent, so an erasure needs no copy of it.
create table session_frames (
  session_id text not null references sessions (id) on delete cascade,
  -- Allocated under the row lock of the conversation, so that frames are committed in its order.
  seq bigint not null,
  event text not null,
  -- Loose, all IDs.
  document_id text, generation_id text, approval_id text,
  -- Of changes of control the reason, of a deleted message its origin.
  data jsonb,
  created_at timestamptz(3) not null default now(),
  primary key (session_id, seq)
);
create index session_frames_created on session_frames (created_at);

-- Numbers a frame; a session without streams has none.
create function number_session_frame() returns trigger language plpgsql as $$
begin
  update conversations set frame_seq = frame_seq + 1 where session_id = new.session_id and streamed
    returning frame_seq into new.seq;
  return case when found then new end;
end $$;
create trigger session_frames_number before insert on session_frames for each row execute function number_session_frame();

-- A trigger, because modules that do not depend on sessions file, resolve and expire approvals. A commit that notifies makes
-- other commits wait, but approvals are rare.
create function add_approval_frame() returns trigger language plpgsql as $$
begin
  insert into session_frames (session_id, event, approval_id) values (new.session_id, 'approval', new.id);
  if found then
    perform pg_notify('muster_sessions', new.session_id);
  end if;
  return null;
end $$;
create trigger approvals_session_frame after insert on approvals for each row
  when (new.session_id is not null) execute function add_approval_frame();
create trigger approvals_session_frame_update after update of status on approvals for each row
  when (new.session_id is not null and new.status is distinct from old.status) execute function add_approval_frame();

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

-- Work items: summaries of conversations.
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

-- Work items: names of sessions.
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

-- Feedback on replies: one row per reply and author. It outlives the reply: all references are loose, except to the project.
create table feedback (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  session_id text,
  -- The message that was rated; null for a turn whose reply is not a message.
  conversation_id text, document_id text,
  generation_id text,
  agent_id text not null, agent_version integer,
  -- End user of the turn.
  actor_id text,
  author_type text not null check (author_type in ('actor', 'user', 'api_key')),
  author_id text not null,
  rating integer check (rating in (-1, 1)),
  score double precision check (score between 0 and 1),
  labels text[] not null default '{}',
  comment text,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),

  -- Never on the wire.
  -- Whether comment and labels were erased here, in events and in stored responses.
  erased boolean not null default false,
  check (document_id is not null or generation_id is not null),
  check ((document_id is null) = (conversation_id is null))
);
create unique index feedback_message on feedback (conversation_id, document_id, author_type, author_id)
  where document_id is not null;
create unique index feedback_turn on feedback (generation_id, author_type, author_id) where document_id is null;
create index feedback_project on feedback (project_id, created_at desc, id desc);
create index feedback_agent on feedback (project_id, agent_id, created_at desc, id desc);
create index feedback_generation on feedback (generation_id) where generation_id is not null;
create index feedback_session on feedback (session_id, created_at desc, id desc) where session_id is not null;
create index feedback_actor on feedback (actor_id, created_at desc, id desc) where actor_id is not null;
create index feedback_author on feedback (author_id);
call count_table('feedback');

-- Without its message, feedback keeps only its numbers.
create function erase_feedback_texts() returns trigger language plpgsql as $$
begin
  update feedback f set comment = null, labels = '{}'
  from gone where f.conversation_id = gone.conversation_id and f.document_id = gone.document_id
    and (f.comment is not null or f.labels <> '{}');
  return null;
end $$;
create trigger conversation_messages_feedback after delete on conversation_messages
  referencing old table as gone for each statement execute function erase_feedback_texts();
