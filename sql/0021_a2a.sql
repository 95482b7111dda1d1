-- Clients of the A2A protocol: tasks, and the addresses that are notified of their changes.

alter table agents add column a2a jsonb;
alter table orchestrations add column a2a jsonb;

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

alter table webhooks
  -- Set for an address that is notified of the changes of a task; it subscribes to no events.
  add column task_id text references a2a_tasks (id) on delete cascade,
  -- Sealed JSON of further headers.
  add column sealed_headers text;
create unique index webhooks_task on webhooks (task_id, name) where task_id is not null;
create index webhooks_notified on webhooks (project_id) where task_id is not null;
-- Addresses of tasks may be many; they are never listed and never subscribe.
drop index webhooks_project;
create index webhooks_project on webhooks (project_id, created_at desc, id desc) where task_id is null;
