-- Webhooks and their deliveries (control, 2). A delivery row is the work itself: no message stands for it.

create table webhooks (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  -- A gate that is gone would open or close deliveries silently, so the policy cannot go.
  policy_id text references policies (id) on delete restrict,
  name text not null,
  description text,
  url text not null,
  events text[] not null,
  active boolean not null default true,
  sealed_secret text not null,
  -- Signs a second element until then, after a rotation with overlap.
  previous_sealed_secret text,
  previous_secret_until timestamptz(3),
  -- Deliveries that failed in a row, and when the first of them did.
  failures integer not null default 0,
  failing_since timestamptz(3),
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index webhooks_project on webhooks (project_id, created_at desc, id desc);
create index webhooks_policy on webhooks (policy_id) where policy_id is not null;

-- The five attempts that may be in flight to one webhook at once, in the whole deployment. A worker holds a slot while
-- it sends; a slot whose lease ran out is free.
create table webhook_slots (
  webhook_id text not null references webhooks (id) on delete cascade,
  slot smallint not null,
  holder text,
  lease_expires_at timestamptz(3),
  primary key (webhook_id, slot)
) with (fillfactor = 50);

create table webhook_deliveries (
  id text primary key,
  webhook_id text not null references webhooks (id) on delete cascade,
  -- Its webhook's; the webhook goes with the project and takes its deliveries along.
  project_id text not null,
  event_id text not null,
  event_type text not null,
  -- A copy: the event's own row may be gone when the delivery is made again.
  envelope text not null,
  status text not null default 'queued' check (status in ('queued', 'completed', 'failed')),
  status_code integer,
  attempts integer not null default 0,
  -- Counts up with every claim; what an attempt writes is guarded by the number it got.
  claim integer not null default 0,
  lease_expires_at timestamptz(3),
  last_attempt_at timestamptz(3),
  next_attempt_at timestamptz(3) default now(),
  response_body text,
  -- Not a foreign key: the original may be pruned before.
  redelivery_of text,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
) with (fillfactor = 85);
-- One delivery of an event to a webhook, and any number of redeliveries. Serves the search by event too.
create unique index webhook_deliveries_event
  on webhook_deliveries (event_id, webhook_id, (case when redelivery_of is null then '' else id end));
create index webhook_deliveries_webhook on webhook_deliveries (webhook_id, created_at desc, id desc);
create index webhook_deliveries_queued on webhook_deliveries (webhook_id, next_attempt_at, id) where status = 'queued';
create index webhook_deliveries_finished on webhook_deliveries (created_at) where status <> 'queued';

-- An event whose dispatch failed waits in a queue of its own.
alter table events add column dispatch_deferred boolean not null default false;
create index events_undispatched on events (created_at, id) where dispatched_at is null and not dispatch_deferred;
