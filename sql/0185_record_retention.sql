-- Days after which conversations, and traces with their turns, are deleted; null keeps them.
alter table projects
  add column conversation_retention_days integer,
  add column trace_retention_days integer;
-- Projects whose records have an end.
create index projects_conversation_retention on projects (id) where conversation_retention_days is not null;
create index projects_trace_retention on projects (id) where trace_retention_days is not null;
