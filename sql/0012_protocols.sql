-- breaking: false

-- Mounts of other protocols: OpenAI, AG-UI, A2A.

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

-- Runs of AG-UI clients: a repeated run streams the turn that the first one started.
create table ag_ui_runs (
  session_id text not null references sessions (id) on delete cascade,
  -- Digest of the client's run id.
  run bytea not null,
  -- Loose: the turn is inserted after this row. Null for a run that only stored messages.
  generation_id text,
  -- Frames of the turn before the run, of a turn that it resumed.
  after_frame integer not null default 0,
  created_at timestamptz(3) not null default now(),
  primary key (session_id, run)
);

-- Tasks of A2A clients.
create table a2a_tasks (
  -- Of its turn or run; a separate id if the message was refused.
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  -- Agent or orchestration, loose.
  target_id text not null,
  -- Principal whose task it is.
  principal_id text not null,
  -- The session, or for an orchestration the first task of the context.
  context_id text not null,
  session_id text references sessions (id) on delete cascade,
  -- The turn is inserted after this row. Later turns continue it after approvals.
  generation_id text references generations (id) on delete cascade deferrable initially deferred,
  run_id text references orchestration_runs (id) on delete cascade,
  -- { code, message } of a message that was refused before it started anything.
  refusal jsonb,
  -- State of which the addresses have been notified.
  notified_state text,
  created_at timestamptz(3) not null default now()
);
create index a2a_tasks_own on a2a_tasks (target_id, principal_id, created_at desc, id desc);
create index a2a_tasks_context on a2a_tasks (context_id, principal_id);
create index a2a_tasks_session on a2a_tasks (session_id) where session_id is not null;
create index a2a_tasks_generation on a2a_tasks (generation_id) where generation_id is not null;
create index a2a_tasks_run on a2a_tasks (run_id) where run_id is not null;
create index a2a_tasks_project on a2a_tasks (project_id);
create index a2a_tasks_refused on a2a_tasks (created_at) where refusal is not null;

-- Messages by the IDs of clients: a repeated message leads to the task of the first.
create table a2a_messages (
  target_id text not null,
  principal_id text not null,
  -- Digest of the client's IDs of message, context and task.
  message bytea not null,
  task_id text not null references a2a_tasks (id) on delete cascade,
  primary key (target_id, principal_id, message)
);
create index a2a_messages_task on a2a_messages (task_id);

-- Addresses that are notified of the changes of a task.
alter table webhooks add foreign key (task_id) references a2a_tasks (id) on delete cascade;
