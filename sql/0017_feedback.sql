-- Feedback on replies.

-- One row per reply and author. It outlives the reply: all references are loose, except to the project.
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
