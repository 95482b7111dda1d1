-- Triggers start work by hand, by clock, by a signed call or by an event; a firing is one such start.

create table triggers (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  description text,
  type text not null check (type in ('manual', 'webhook', 'schedule', 'event')),
  target_type text not null,
  -- Loose: a trigger outlives its target, and its firings fail then.
  target_id text not null,
  action text,
  -- json, not jsonb, all of these: what a caller wrote comes back with its keys in their order.
  input json,
  input_mapping json,
  cron text,
  timezone text,
  overlap_policy text check (overlap_policy in ('allow', 'skip')),
  misfire_policy text check (misfire_policy in ('fire_once', 'skip')),
  event_pattern text,
  event_filter json,
  signature_scheme text check (signature_scheme in ('timestamped', 'body_sha256')),
  signature_header text,
  active boolean not null default true,
  policy_id text references policies (id),
  next_fire_at timestamptz(3),
  -- Whom its firings act as: { type, id, via }.
  authority jsonb not null,
  sealed_secret text,
  -- The secret before the last rotation, which verifies too until then.
  previous_sealed_secret text,
  previous_secret_until timestamptz(3),
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index triggers_project on triggers (project_id, created_at desc, id desc);
create unique index triggers_name on triggers (project_id, name);
create index triggers_event on triggers (project_id) where type = 'event';
create index triggers_due on triggers (next_fire_at) where next_fire_at is not null;
create index triggers_policy on triggers (policy_id) where policy_id is not null;

create table trigger_firings (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  trigger_id text not null references triggers (id) on delete cascade,
  source text not null check (source in ('manual', 'webhook', 'schedule', 'event')),
  -- A firing is an attempt at once: `queued` waits for a worker, `running` calls a tool, `started` waits for what it started.
  state text not null default 'queued' check (state in ('queued', 'running', 'started', 'succeeded', 'failed')),
  input json not null,
  target_type text not null,
  -- What was started: a run, a turn.
  result_id text,
  result json,
  error jsonb,
  idempotency_key text,
  event_id text,
  scheduled_for timestamptz(3),
  -- The triggers that led here, oldest first, without its own.
  causation_chain text[] not null default '{}',
  fired_by jsonb,
  -- When somebody has to look: at a queued one at once, at a running one when its lease is over.
  due_at timestamptz(3) default now(),
  -- Claims by workers: the number that fences a late writer.
  claims integer not null default 0,
  losses integer not null default 0,
  failures integer not null default 0,
  heartbeat_at timestamptz(3),
  started_at timestamptz(3),
  completed_at timestamptz(3),
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
) with (fillfactor = 80);
-- A list reads these backwards: where keys rise, pages stay full.
create index trigger_firings_trigger on trigger_firings (trigger_id, created_at, id);
create index trigger_firings_project on trigger_firings (project_id);
create unique index trigger_firings_key on trigger_firings (trigger_id, idempotency_key) where idempotency_key is not null;
create index trigger_firings_due on trigger_firings (due_at) where due_at is not null;
create index trigger_firings_live on trigger_firings (trigger_id) where state in ('queued', 'running', 'started');
create index trigger_firings_result on trigger_firings (result_id) where result_id is not null;
create index trigger_firings_started on trigger_firings (created_at, id) where state = 'started';
create index trigger_firings_ended on trigger_firings (completed_at) where state in ('succeeded', 'failed');
