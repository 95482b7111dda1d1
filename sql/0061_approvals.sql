-- Approvals: what people are asked to decide, and what follows from it.

create table approvals (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  origin text not null check (origin in ('node', 'tool_call', 'task_transition')),
  status text not null default 'pending' check (status in ('pending', 'approved', 'rejected', 'expired')),
  -- json, not jsonb: arguments come back with their keys in their order.
  proposed_action json,
  reasoning text,
  evidence json,
  predicted_impact text,
  expires_at timestamptz(3) not null,
  dedup_key text,
  -- What they name is plain: it may be deleted.
  orchestration_run_id text,
  node_id text,
  generation_id text,
  session_id text,
  agent_id text,
  task_id text,
  task_transition text,
  policy_version text,
  previous_item_id text,
  resolved_by text,
  resolution_reason text,
  edited_arguments json,
  -- What became of the call: { status, result_digest, error, generation_id, finished_at }.
  execution json,
  tool_type text,
  -- Version of the agent that proposed it: where a tool of a binding's own is defined.
  agent_version integer,
  conversation_id text,
  -- Whom the call is made as, and what is asked again before.
  authority jsonb,
  permission jsonb,
  -- The user behind it, who may not resolve the item where that is forbidden.
  started_by text,
  forbid_self_approval boolean not null default false,
  content_mode text not null default 'full' check (content_mode in ('full', 'none')),
  -- Arguments and contexts of the call, sealed; null once nothing follows any more.
  sealed text,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index approvals_project on approvals (project_id, created_at desc, id desc);
-- Most of what is asked for is what waits.
create index approvals_pending on approvals (project_id, created_at desc, id desc) where status = 'pending';
create index approvals_expiry on approvals (expires_at) where status = 'pending';
create unique index approvals_dedup on approvals (project_id, dedup_key) where status = 'pending';
create index approvals_recurrences on approvals (project_id, dedup_key, created_at desc) where dedup_key is not null;
create index approvals_agent on approvals (agent_id, created_at desc, id desc) where agent_id is not null;
create index approvals_session on approvals (session_id, created_at desc, id desc) where session_id is not null;
create index approvals_run on approvals (orchestration_run_id, id) where orchestration_run_id is not null;
create index approvals_task on approvals (task_id, id) where task_id is not null;

-- What follows from an approval that was resolved or has expired; gone once it has ended.
create table approval_attempts (
  approval_id text primary key references approvals (id) on delete cascade,
  id text not null unique,
  state text not null default 'queued' check (state in ('queued', 'running')),
  due_at timestamptz(3) not null default now(),
  claims integer not null default 0,
  losses integer not null default 0,
  failures integer not null default 0,
  heartbeat_at timestamptz(3),
  -- The call was about to be made. With an outcome it was; without one nobody knows.
  executing boolean not null default false,
  outcome text,
  created_at timestamptz(3) not null default now()
);
create index approval_attempts_due on approval_attempts (due_at);
