-- Deciders: sets of questions that an agent or a tool answers. Decisions: the answers to one input.

create table deciders (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  description text,
  agent_id text references agents (id),
  tool_id text references tools (id),
  version integer not null default 1,
  -- json, not jsonb: what a caller wrote comes back with its keys in their order.
  questions json not null,
  escalate_below double precision,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now(),
  check ((agent_id is null) <> (tool_id is null))
);
create index deciders_project on deciders (project_id, created_at desc, id desc);
create unique index deciders_name on deciders (project_id, name);
create index deciders_agent on deciders (agent_id) where agent_id is not null;
create index deciders_tool on deciders (tool_id) where tool_id is not null;

create table decider_versions (
  id text primary key,
  decider_id text not null references deciders (id) on delete cascade,
  version integer not null check (version >= 1),
  config json not null,
  label text,
  -- Loose: a version outlives its author.
  created_by text,
  created_at timestamptz(3) not null default now(),
  unique (decider_id, version)
);

create table decisions (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  -- Loose, all of them: a decision outlives what it was made with.
  decider_id text,
  decider_version integer,
  agent_id text,
  -- The version of the agent that is asked.
  agent_version integer,
  tool_id text,
  generation_id text,
  -- The questions as they were asked.
  asked json not null,
  status text not null default 'queued' check (status in ('queued', 'running', 'completed', 'failed')),
  answers json,
  error jsonb,
  metadata json,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
) with (fillfactor = 80);
-- A list reads these backwards: where keys rise, pages stay full.
create index decisions_project on decisions (project_id, created_at, id);
create index decisions_decider on decisions (decider_id, created_at, id) where decider_id is not null;
create unique index decisions_generation on decisions (generation_id) where generation_id is not null;

create trigger row_counts_inserted after insert on decisions referencing new table as changed
  for each statement execute function count_rows();
create trigger row_counts_deleted after delete on decisions referencing old table as changed
  for each statement execute function count_rows();
create trigger row_counts_kept before update of project_id on decisions
  for each statement execute function refuse_other_scope();

-- A row for each decision that waits for a worker or whose tool is called; one that an agent makes leaves with its turn.
create table decision_attempts (
  decision_id text primary key references decisions (id) on delete cascade,
  id text not null unique,
  state text not null default 'queued' check (state in ('queued', 'running')),
  -- When somebody has to look: a queued one at once, at a running one when its lease is over.
  due_at timestamptz(3) not null default now(),
  -- Claims by workers: the number that fences a late writer.
  claims integer not null default 0,
  -- Claims whose worker was not heard of until its lease was over.
  losses integer not null default 0,
  failures integer not null default 0,
  -- Who asked for it: { type, id, via }, and the right that is asked for again: { action, kind, id }.
  principal jsonb not null,
  permission jsonb not null,
  -- Whether the tool may have been called.
  called boolean not null default false,
  heartbeat_at timestamptz(3),
  created_at timestamptz(3) not null default now()
);
create index decision_attempts_due on decision_attempts (due_at);

-- What is decided about, sealed, until the decision has settled or its agent is asked. Where no content is kept it is in
-- no log of the database, and a crash of the database loses it.
create table decision_inputs (
  decision_id text primary key references decisions (id) on delete cascade,
  sealed text not null
);
create unlogged table decision_inputs_unlogged (
  decision_id text primary key references decisions (id) on delete cascade,
  sealed text not null
);

-- Decisions whose turn may be gone: those that an agent is making.
create index decisions_asking on decisions (created_at, id) where status = 'running' and generation_id is not null;
