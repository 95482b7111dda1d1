-- Event streams of sessions.

-- Whether a stream of the session was ever opened: only then frames are written and its turns are streamed.
alter table conversations add streamed boolean not null default false, add frame_seq bigint not null default 0;

-- Highest position that the end user has seen.
alter table sessions add read_position integer;

alter table agents add end_user_activity text not null default 'none' check (end_user_activity in ('none', 'labels'));

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

-- Tickets that open one stream, in place of a credential.
create table stream_tickets (
  -- SHA-256 of the ticket.
  hash bytea primary key,
  project_id text not null references projects (id) on delete cascade,
  -- ID of the session or generation.
  target_id text not null,
  -- The credential that opens the stream.
  sealed text not null,
  expires_at timestamptz(3) not null
);
create index stream_tickets_expires on stream_tickets (expires_at);
