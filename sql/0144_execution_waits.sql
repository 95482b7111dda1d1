-- Executions that wait for an event of their project, and executions that are paused.

alter table playbook_executions
  -- { step_key, pattern, filter, since, expires_at } while a step waits for an event.
  add column event_wait json,
  -- Of the run that drives it, unless the project's pause is its only one.
  add column pause_requested_at timestamptz(3),
  add column pause_reason text;
-- Who is looked at when something happens in a project.
create index playbook_executions_event_wait on playbook_executions (project_id, (event_wait ->> 'pattern'), id)
  where event_wait is not null;
