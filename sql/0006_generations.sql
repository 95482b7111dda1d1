-- Turns of agents: the record, the tree that groups them, the journal that lets another worker go on, the frames that
-- callers listen to.

create table traces (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  agent_id text not null references agents (id) on delete cascade,
  step_count integer not null default 0,
  parent_trace_id text references traces (id) on delete set null,
  root_trace_id text references traces (id) on delete set null,
  error jsonb,
  notes jsonb not null default '[]',
  content_redacted_at timestamptz(3),
  content_redacted_by_principal_type text,
  content_redacted_by_principal_id text,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index traces_project on traces (project_id, created_at desc, id desc);
create index traces_agent on traces (agent_id);
create index traces_parent on traces (parent_trace_id) where parent_trace_id is not null;
create index traces_root on traces (root_trace_id) where root_trace_id is not null;

create table generations (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  agent_id text not null references agents (id) on delete cascade,
  trace_id text not null references traces (id) on delete cascade,
  agent_version integer,
  initiator_generation_id text references generations (id) on delete set null,
  chain_id text,
  -- Loose ids: a generation outlives its conversation, session and end user.
  conversation_id text,
  session_id text,
  actor_id text,
  started_by_principal_type text,
  started_by_principal_id text,
  status text not null default 'pending' check (status in ('pending', 'in_progress', 'requires_action', 'completed', 'failed')),
  stop_reason text,
  error jsonb,
  output jsonb,
  input jsonb,
  required_action jsonb,
  usage jsonb,
  step_count integer not null default 0,
  action_id text,
  source text,
  metadata jsonb,
  content_redacted_at timestamptz(3),
  content_redacted_by_principal_type text,
  content_redacted_by_principal_id text,
  started_at timestamptz(3),
  completed_at timestamptz(3),
  last_activity_at timestamptz(3),
  created_at timestamptz(3) not null,
  updated_at timestamptz(3) not null,

  -- Never on the wire.
  -- Who the turn runs as: a principal record, never a token.
  authority jsonb not null,
  -- The permission that is asked again when a queued turn starts: { action, kind, id }.
  permission jsonb,
  -- Fence: every write of an attempt carries its number.
  attempt integer not null default 0,
  -- Attempts lost since the last settled step.
  lost_attempts integer not null default 0,
  handed_back boolean not null default false,
  abort jsonb,
  streamed boolean not null default false,
  shape text not null default 'agent' check (shape in ('agent', 'conversation')),
  -- Content mode when the turn was made; `none` keeps nothing readable at rest.
  content_mode text not null default 'full' check (content_mode in ('full', 'none')),
  deadline_at timestamptz(3)
);
create index generations_project on generations (project_id, created_at desc, id desc);
create index generations_agent on generations (agent_id, created_at desc, id desc);
create index generations_trace on generations (trace_id, created_at, id);
create index generations_session on generations (session_id, created_at desc) where session_id is not null;
create index generations_conversation on generations (conversation_id, created_at desc) where conversation_id is not null;
create index generations_actor on generations (actor_id, created_at desc) where actor_id is not null;
create index generations_initiator on generations (initiator_generation_id) where initiator_generation_id is not null;
-- Serves the sweep: turns that are not at their end.
create index generations_open on generations (updated_at) where status in ('pending', 'in_progress', 'requires_action');

-- The journal: one row a settled step. With content mode `none` it keeps counters and usage only.
create table generation_steps (
  generation_id text not null references generations (id) on delete cascade,
  n integer not null,
  text text,
  finish_reason text,
  model text,
  ai_provider_id text,
  tool_calls jsonb not null default '[]',
  tool_results jsonb not null default '[]',
  usage jsonb,
  started_at timestamptz(3) not null,
  completed_at timestamptz(3) not null,
  primary key (generation_id, n)
);

-- The sealed working bag of a turn that is not at its end: messages, system blocks, overrides.
create table generation_work (
  generation_id text primary key references generations (id) on delete cascade,
  sealed text not null
);
-- The same for content mode `none`; unlogged, so that neither the log nor a backup of it ever holds them.
create unlogged table generation_work_unlogged (
  generation_id text primary key references generations (id) on delete cascade,
  sealed text not null
);

-- What a stream sends, kept for ten minutes after the end. Sealed in content mode `none`.
create unlogged table stream_frames (
  generation_id text not null references generations (id) on delete cascade,
  seq integer not null,
  event text not null,
  data text not null,
  created_at timestamptz(3) not null default now(),
  primary key (generation_id, seq)
);
create index stream_frames_created on stream_frames (created_at);
