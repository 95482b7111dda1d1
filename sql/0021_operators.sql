-- breaking: false

-- Since when a session is assigned. Set by a trigger, because processes of the release before write assigned_to only. It runs
-- for takeovers and handbacks: no other statement sets the column.
alter table sessions add column assigned_at timestamptz(3);

create function stamp_assignment() returns trigger language plpgsql as $$
begin
  new.assigned_at := case when new.assigned_to is not null then now() end;
  return new;
end $$;
create trigger sessions_assigned_at before update of assigned_to on sessions
  for each row when (old.assigned_to is distinct from new.assigned_to) execute function stamp_assignment();

-- Notes of operators about a session, which neither its end user nor a model reads.
create table session_notes (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  session_id text not null references sessions (id) on delete cascade,
  -- Loose: a note outlives its author.
  author_type text not null check (author_type in ('user', 'api_key')),
  author_id text not null,
  text text not null,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index session_notes_session on session_notes (session_id, created_at, id);
create index session_notes_project on session_notes (project_id);

-- Texts that operators insert into their messages.
create table prepared_replies (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  text text not null,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index prepared_replies_project on prepared_replies (project_id, created_at desc, id desc);
create unique index prepared_replies_name on prepared_replies (project_id, name);
