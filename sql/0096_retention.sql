-- Retention of content, legal hold, and the erasure of what a project has of an end user.

-- While it is in the future nothing of the project's content is erased.
alter table projects add column content_hold_until timestamptz(3);
-- Projects whose content has an end.
create index projects_retention on projects (id) where trace_content_retention_days is not null;

-- What the daily erasure looks for; rises with time.
create index traces_kept on traces (project_id, created_at, id) where parent_trace_id is null and content_redacted_at is null;

create index approvals_generation on approvals (generation_id) where generation_id is not null;

-- Answers that are kept for repeats, by the ids they name: those with erased content are found so.
create index idempotency_keys_named on idempotency_keys using gin (
  jsonb_path_query_array(body, 'strict $.** ? (@.type() == "string" && @ like_regex "^[a-z_]+_[0-9a-z]{26}$")')
) where body is not null;

-- End users whose content is being erased; a row is gone once nothing is left.
create table actor_purges (
  actor_id text primary key references actors (id) on delete cascade,
  id text not null unique,
  state text not null default 'queued' check (state in ('queued', 'running')),
  due_at timestamptz(3) not null default now(),
  claims integer not null default 0,
  losses integer not null default 0,
  failures integer not null default 0,
  heartbeat_at timestamptz(3),
  -- Who asked for it: { type, id, via }.
  principal jsonb not null,
  -- What was made after this stays. Null in the first of two passes: a turn that begins during it may still have read what
  -- it erases.
  until timestamptz(3),
  -- What was erased so far, by what it is called.
  counts jsonb not null default '{}',
  created_at timestamptz(3) not null default now()
);
create index actor_purges_due on actor_purges (due_at);
