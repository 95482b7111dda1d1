-- breaking: false

-- Events, audit, webhooks, quotas, usage and prices, activity, exceptions, backlogs of retention.

create table events (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null, resource_type text not null, resource_id text not null,
  -- Text, not jsonb: the signed and sent bytes never change. Compressed (`packed`) for a project without webhooks.
  envelope text, packed bytea,
  custom boolean not null default false, causation jsonb,
  dispatched_at timestamptz(3),
  -- The dispatch failed and waits in a separate queue.
  dispatch_deferred boolean not null default false,
  created_at timestamptz(3) not null,
  constraint events_envelope check ((envelope is null) <> (packed is null))
);
create index events_project on events (project_id, created_at, id);
create index events_resource on events (resource_id);
create index events_undispatched on events (created_at, id) where dispatched_at is null and not dispatch_deferred;
call count_table('events');

-- No foreign key: entries outlive their project.
create table audit_entries (
  id text primary key,
  project_id text,
  principal_type text check (principal_type in ('user', 'api_key')),
  principal_id text, action text not null, resource_srn text, resource_public_id text,
  status integer not null, request_id text, ip text, user_agent text, detail jsonb,
  created_at timestamptz(3) not null
);
create index audit_entries_project on audit_entries (project_id, created_at, id);
create index audit_entries_created on audit_entries (created_at, id);
create trigger audit_entries_append_only before update or delete on audit_entries
  for each row execute function refuse_change('audit entries are append-only', 'DELETE');
create trigger audit_entries_no_truncate before truncate on audit_entries
  for each statement execute function refuse_change('audit entries are append-only');
call count_table('audit_entries');

-- Hash chains of audit entries, one per project, written by a worker after the entries. A batch has the seals of entries
-- that were sealed together: for the entry at each position from `position - count + 1` to `position` of a chain its ID and
-- its hash of 32 bytes. The seal of a deleted entry remains until no earlier entry of the chain exists, so that the chain can
-- be verified.
create table audit_seal_batches (
  chain text not null,
  -- Of the last entry.
  position bigint not null,
  count integer not null check (count > 0),
  -- Least and greatest ID.
  first_id text not null, last_id text not null,
  -- In the order of the positions.
  entry_ids text[] not null, hashes bytea not null,
  -- Places in the batch, from 1, of entries that retention deleted.
  pruned integer[] not null default '{}',
  primary key (chain, position),
  check (cardinality(entry_ids) = count and length(hashes) = 32 * count)
);
-- Batches of recent passes.
create index audit_seal_batches_recent on audit_seal_batches (last_id);
-- Batches of entries that retention deletes.
create index audit_seal_batches_unpruned on audit_seal_batches (chain, first_id) where cardinality(pruned) < count;
-- Seals to delete.
create index audit_seal_batches_pruned on audit_seal_batches (chain, position) where cardinality(pruned) = count;
-- Merging of small batches replaces them, under the setting of retention.
create trigger audit_seal_batches_append_only before update on audit_seal_batches
  for each row execute function refuse_change('audit seals are append-only', 'UPDATE');
create trigger audit_seal_batches_kept before delete on audit_seal_batches
  for each row execute function refuse_change('audit seals are append-only', 'DELETE');
create trigger audit_seal_batches_no_truncate before truncate on audit_seal_batches
  for each statement execute function refuse_change('audit seals are append-only');

-- Start of a chain whose first seals retention deleted: position and hash of the last deleted seal, which the next one
-- continues. One row per chain.
create table audit_chain_starts (
  chain text primary key,
  position bigint not null check (position > 0),
  hash bytea not null check (length(hash) = 32)
);
create trigger audit_chain_starts_inserted before insert on audit_chain_starts
  for each row execute function refuse_change('audit seals are append-only', 'INSERT');
create trigger audit_chain_starts_updated before update on audit_chain_starts
  for each row execute function refuse_change('audit seals are append-only', 'UPDATE');
create trigger audit_chain_starts_kept before delete on audit_chain_starts
  for each row execute function refuse_change('audit seals are append-only');
create trigger audit_chain_starts_no_truncate before truncate on audit_chain_starts
  for each statement execute function refuse_change('audit seals are append-only');

-- Start of the last complete sealing pass.
create table audit_sealing (
  singleton boolean primary key default true check (singleton),
  passed_at timestamptz(3) not null
);

-- One verification of a chain at a time, because it reads and hashes every entry.
create table audit_verifications (
  chain text primary key,
  holder text not null,
  held_until timestamptz(3) not null
);

-- Refused sign-ins that are counted, with one audit entry per minute instead of one each.
create table refused_attempts (
  action text not null,
  -- In lower case; empty for names of no user, which are counted together.
  username text not null,
  user_id text,
  -- Attempts that no entry counts yet, time of the first and address of the last.
  attempts bigint not null, since timestamptz(3) not null, ip text, audited_at timestamptz(3),
  primary key (action, username)
);

create table webhooks (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  -- Without its policy a webhook would silently deliver everything or nothing: the policy cannot be deleted.
  policy_id text references policies (id) on delete restrict,
  name text not null, description text, url text not null, events text[] not null,
  active boolean not null default true, sealed_secret text not null,
  -- After a rotation with overlap: a second signature until then.
  previous_sealed_secret text,
  previous_secret_until timestamptz(3),
  -- Consecutive failed deliveries, and the time of the first.
  failures integer not null default 0, failing_since timestamptz(3),
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  -- Set for an address that is notified of the changes of a task; it subscribes to no events. References a2a_tasks.
  task_id text,
  -- Sealed JSON of further headers.
  sealed_headers text
);
-- Addresses of tasks may be many; they are never listed and never subscribe.
create index webhooks_project on webhooks (project_id, created_at desc, id desc) where task_id is null;
create unique index webhooks_task on webhooks (task_id, name) where task_id is not null;
create index webhooks_notified on webhooks (project_id) where task_id is not null;
create index webhooks_policy on webhooks (policy_id) where policy_id is not null;
create constraint trigger row_counts_dropped after delete on webhooks deferrable initially deferred
  for each row execute function drop_row_counts();

-- The five concurrent attempts per webhook in the whole deployment. A slot with an expired lease is free.
create table webhook_slots (
  webhook_id text not null references webhooks (id) on delete cascade,
  slot smallint not null, holder text, lease_expires_at timestamptz(3),
  primary key (webhook_id, slot)
) with (fillfactor = 50);

-- A delivery is its own work item, without a message.
create table webhook_deliveries (
  id text primary key,
  webhook_id text not null references webhooks (id) on delete cascade,
  -- Of the webhook, which is deleted with the project and cascades to its deliveries.
  project_id text not null,
  event_id text not null, event_type text not null,
  -- Null: the envelope of the event, or its retained copy; copies for 200 webhooks turned 150 KB of changes into 32 MB.
  -- A delivery without an event (webhooks.test) has a text.
  envelope text,
  status text not null default 'queued' check (status in ('queued', 'completed', 'failed')),
  status_code integer, attempts integer not null default 0,
  -- Increases with every claim; the writes of an attempt are fenced by its number.
  claim integer not null default 0,
  holder text, lease_expires_at timestamptz(3), last_attempt_at timestamptz(3),
  next_attempt_at timestamptz(3) default now(),
  response_body text,
  -- Loose: the original may be deleted earlier.
  redelivery_of text,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  -- Workers that were lost while they had claimed the queued delivery. Such a delivery is a suspect, which a worker sends
  -- while it does nothing else; `ran_alone` is true while it does.
  worker_losses integer not null default 0,
  ran_alone boolean not null default false
) with (fillfactor = 85);
-- One delivery of an event to a webhook, and any number of redeliveries. Also serves the search by event.
create unique index webhook_deliveries_event
  on webhook_deliveries (event_id, webhook_id, (case when redelivery_of is null then '' else id end));
create index webhook_deliveries_webhook on webhook_deliveries (webhook_id, created_at, id);
create index webhook_deliveries_queued on webhook_deliveries (webhook_id, next_attempt_at, id) where status = 'queued';
create index webhook_deliveries_finished on webhook_deliveries (created_at) where status <> 'queued';
create index webhook_deliveries_suspects on webhook_deliveries (worker_losses, next_attempt_at, id)
  where status = 'queued' and worker_losses > 0;
call count_table('webhook_deliveries', 'webhook_id');

-- Envelopes of events that were deleted before their deliveries: EVENT_RETENTION_DAYS may be the shorter retention.
create table retained_envelopes (
  event_id text primary key,
  project_id text not null references projects (id) on delete cascade,
  resource_type text not null, resource_id text not null,
  envelope text not null
);
create index retained_envelopes_project on retained_envelopes (project_id);
create index retained_envelopes_resource on retained_envelopes (resource_id);

create table quotas (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  scope text not null check (scope in ('project', 'api_key', 'agent', 'actor')),
  -- Loose: a quota without its key, agent or actor remains without effect.
  scope_ref text,
  metric text not null check (metric in ('requests', 'tokens', 'cost_usd', 'storage_bytes')),
  -- Reserved words of SQL, quoted in statements.
  "window" text not null check ("window" in ('rolling_1m', 'rolling_1h', 'rolling_24h', 'calendar_month', 'current')),
  "limit" double precision not null check ("limit" > 0),
  mode text not null check (mode in ('enforce', 'monitor')),
  meter_type text check (meter_type in ('llm_tokens', 'compute_execution', 'api_request', 'storage')),
  on_unpriced text check (on_unpriced in ('block', 'allow')),
  reserve boolean not null default false,
  warn_at double precision[] not null default '{}',
  -- Window of the last quota.exceeded, of the last audit entry of a monitored breach, and of the highest warning.
  fired_window_key text, last_fired_at timestamptz(3), audited_window_key text, warned_window_key text,
  warned_fraction double precision,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);
create unique index quotas_identity on quotas (project_id, scope, scope_ref, metric, "window", meter_type) nulls not distinct;
create index quotas_project on quotas (project_id, created_at desc, id desc);

-- Incremented by every request of a project key. No foreign key: counting must not wait for a transaction that writes the
-- quota; counters of a deleted quota are deleted with it or by the daily pruning.
create table quota_counters (
  quota_id text not null, window_key text not null, window_start timestamptz(3) not null,
  count bigint not null,
  primary key (quota_id, window_key)
) with (fillfactor = 50);
create index quota_counters_start on quota_counters (window_start);

-- Content of a project per UTC day; storage_bytes quotas read the newest row.
create table storage_snapshots (
  project_id text not null references projects (id) on delete cascade,
  day date not null, bytes bigint not null, chunk_count bigint not null,
  created_at timestamptz(3) not null default now(),
  primary key (project_id, day)
);

-- One row per billable occurrence, priced when it is written and never changed.
create table usage_events (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  -- Equal for a repeat of the same occurrence.
  idempotency_key text not null,
  meter_type text not null check (meter_type in ('llm_tokens', 'compute_execution', 'tool_execution', 'api_request', 'storage')),
  provider text not null, model text not null,
  -- Loose, all of these. Null for an agent that another project shares, whose provider is not disclosed.
  ai_provider_id text,
  agent_id text, generation_id text, trace_id text, orchestration_run_id text, node_id text,
  tool_id text, tool_action text, actor_id text, session_id text, trigger_id text,
  action_id text, source text, publisher_project_id text,
  -- Sum of the priced components; null if none is priced.
  cost_usd numeric,
  -- Counted by token quotas and thresholds: uncached input, cached input and output.
  tokens bigint not null default 0,
  -- [{ component, quantity, unit, billable, unit_price, cost_usd, price_id }], numbers as JSON numbers; the last three
  -- are null in an unpriced component.
  components jsonb not null,
  created_at timestamptz(3) not null default now(),
  -- Number of events that the row sums up: more than one after a roll-up.
  event_count integer not null default 1,
  -- The model and the service tier that a vendor names in its answer; null if it names none.
  served_model text, service_tier text
);
create unique index usage_events_key on usage_events (idempotency_key);
-- The usage of a window is summed by an index-only scan.
create index usage_events_project on usage_events (project_id, created_at, id) include (tokens, cost_usd);
create index usage_events_generation on usage_events (generation_id) where generation_id is not null;
create index usage_events_session on usage_events (session_id, created_at, id) where session_id is not null;
create index usage_events_actor on usage_events (actor_id, created_at, id) where actor_id is not null;
create index usage_events_provider on usage_events (ai_provider_id) where ai_provider_id is not null;
-- Reports by columns that usage_rollups does not have read events.
create index usage_events_agent on usage_events (agent_id, created_at, id) where agent_id is not null;
create index usage_events_run on usage_events (orchestration_run_id) where orchestration_run_id is not null;
create index usage_events_trace on usage_events (trace_id) where trace_id is not null;
-- Events of a trigger, an action or a source among a million of their project: 2 ms instead of 300 by
-- usage_events_project. Most events have none of the three. Nearly all have a model, for which reports read
-- usage_rollups: an index on it would cost every write.
create index usage_events_trigger on usage_events (project_id, trigger_id, created_at, id) where trigger_id is not null;
create index usage_events_action on usage_events (project_id, action_id, created_at, id) where action_id is not null;
create index usage_events_source on usage_events (project_id, source, created_at, id) where source is not null;
-- Numbers on invoices do not change.
create trigger usage_events_frozen before update on usage_events
  for each statement execute function refuse_change('usage events are never changed');
call count_table('usage_events');

-- Usage of a project, each of its agents and each of its end users per hour and meter, added up in the transaction that
-- writes the events: exact in every snapshot. Quotas, thresholds and reports read these sums instead of events.
create table usage_sums (
  project_id text not null references projects (id) on delete cascade,
  scope text not null check (scope in ('project', 'agent', 'actor')),
  -- ID of the agent or actor, loose; empty for the project.
  ref text not null,
  hour timestamptz not null, meter_type text not null,
  -- As in row_counts; -1 after the shards of a past hour were folded.
  shard smallint not null,
  events bigint not null, tokens bigint not null, cost_usd numeric not null,
  -- llm_tokens events other than embeddings: all, with a priced component, with an unpriced billable component.
  metered bigint not null,
  priced bigint not null, unpriced bigint not null,
  primary key (project_id, scope, ref, hour, meter_type, shard)
) with (fillfactor = 50);
create index usage_sums_hour on usage_sums (hour);

-- The same by the columns that reports group by and that have few values. Null in an event is empty here.
create table usage_rollups (
  project_id text not null references projects (id) on delete cascade,
  hour timestamptz not null, meter_type text not null, model text not null,
  ai_provider_id text not null, agent_id text not null, source text not null,
  publisher_project_id text not null,
  -- Empty for the events with their tokens, so that a turn writes one row. Other components have separate rows.
  component text not null,
  unit text not null, shard smallint not null, events bigint not null, quantity numeric not null,
  -- Of the priced part; null if nothing is priced.
  cost_usd numeric,
  input_tokens bigint not null, input_cost numeric,
  cached_tokens bigint not null, cached_cost numeric,
  cache_write_tokens bigint not null, cache_write_cost numeric,
  output_tokens bigint not null, output_cost numeric, reasoning_tokens bigint not null,
  primary key (project_id, hour, meter_type, model, ai_provider_id, agent_id, source, publisher_project_id, component, unit, shard)
) with (fillfactor = 50);
create index usage_rollups_hour on usage_rollups (hour);

-- The time up to which the usage of a project is rolled up, and whether events of existing turns before it remain, which
-- are rolled up once retention deletes turns.
create table usage_roll_ups (
  project_id text primary key references projects (id) on delete cascade,
  through timestamptz(3) not null,
  turns_remain boolean not null
);

-- Returns the components of an event: one row for the event with its tokens, one for every other component.
create function usage_parts(components jsonb, event_cost numeric) returns table (
  component text, unit text, events bigint, quantity numeric, cost_usd numeric,
  input_tokens bigint, input_cost numeric, cached_tokens bigint, cached_cost numeric, cache_write_tokens bigint,
  cache_write_cost numeric, output_tokens bigint, output_cost numeric, reasoning_tokens bigint
) language sql immutable as $$
  with c as (
    select *, c.unit = 'token' and c.quantity = trunc(c.quantity) and c.component in
      ('input_tokens', 'cached_tokens', 'cache_write_tokens', 'output_tokens', 'reasoning_tokens') as token
    from jsonb_to_recordset(components) as c (component text, unit text, quantity numeric, cost_usd numeric)
  )
  select '', '', 1::bigint, 0::numeric, event_cost,
    coalesce(sum(c.quantity) filter (where c.component = 'input_tokens'), 0)::bigint,
    sum(c.cost_usd) filter (where c.component = 'input_tokens'),
    coalesce(sum(c.quantity) filter (where c.component = 'cached_tokens'), 0)::bigint,
    sum(c.cost_usd) filter (where c.component = 'cached_tokens'),
    coalesce(sum(c.quantity) filter (where c.component = 'cache_write_tokens'), 0)::bigint,
    sum(c.cost_usd) filter (where c.component = 'cache_write_tokens'),
    coalesce(sum(c.quantity) filter (where c.component = 'output_tokens'), 0)::bigint,
    sum(c.cost_usd) filter (where c.component = 'output_tokens'),
    coalesce(sum(c.quantity) filter (where c.component = 'reasoning_tokens'), 0)::bigint
  from c where c.token
  union all
  select c.component, c.unit, 0, c.quantity, c.cost_usd, 0, null, 0, null, 0, null, 0, null, 0 from c where not c.token
$$;

-- Returns the components of a row, as the function with two arguments, with the number of its events.
create function usage_parts(components jsonb, event_cost numeric, event_count integer) returns table (
  component text, unit text, events bigint, quantity numeric, cost_usd numeric,
  input_tokens bigint, input_cost numeric, cached_tokens bigint, cached_cost numeric, cache_write_tokens bigint,
  cache_write_cost numeric, output_tokens bigint, output_cost numeric, reasoning_tokens bigint
) language sql immutable as $$
  select p.component, p.unit, p.events * event_count, p.quantity, p.cost_usd, p.input_tokens, p.input_cost, p.cached_tokens,
    p.cached_cost, p.cache_write_tokens, p.cache_write_cost, p.output_tokens, p.output_cost, p.reasoning_tokens
  from usage_parts(components, event_cost) p
$$;

-- Whether an event has a quantity that a price could cover and none does.
create function usage_unpriced(components jsonb) returns boolean language sql immutable as $$
  select exists (
    select 1 from jsonb_to_recordset(components) as c (quantity numeric, billable boolean, unit_price numeric)
    where c.billable and c.quantity > 0 and c.unit_price is null)
$$;

-- The sum of two costs, null if neither is priced.
create function add_cost(a numeric, b numeric) returns numeric language sql immutable
return coalesce(a + b, a, b);

-- Adds events to the sums. With cached plans: planning for each array takes 0.4 ms, execution 0.1.
create function add_usage(added usage_events[]) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
  own smallint := counter_shard();
begin
  insert into usage_sums as s
    (project_id, scope, ref, hour, meter_type, shard, events, tokens, cost_usd, metered, priced, unpriced)
  select e.project_id, r.scope, r.ref, e.hour, e.meter_type, own, sum(e.event_count), sum(e.tokens), coalesce(sum(e.cost_usd), 0),
    coalesce(sum(e.event_count) filter (where e.model_use), 0),
    coalesce(sum(e.event_count) filter (where e.model_use and e.cost_usd is not null), 0),
    coalesce(sum(e.event_count) filter (where e.model_use and e.unpriced), 0)
  from (
    select *, date_trunc('hour', created_at, 'UTC') as hour, usage_unpriced(components) as unpriced,
      meter_type = 'llm_tokens' and source is distinct from 'embedding' as model_use
    from unnest(added) offset 0
  ) e cross join lateral (values ('project', ''), ('agent', e.agent_id), ('actor', e.actor_id)) r (scope, ref)
  where r.ref is not null
  group by 1, 2, 3, 4, 5
  on conflict (project_id, scope, ref, hour, meter_type, shard) do update set
    events = s.events + excluded.events, tokens = s.tokens + excluded.tokens, cost_usd = s.cost_usd + excluded.cost_usd,
    metered = s.metered + excluded.metered, priced = s.priced + excluded.priced, unpriced = s.unpriced + excluded.unpriced;

  insert into usage_rollups as r (project_id, hour, meter_type, model, ai_provider_id, agent_id, source,
    publisher_project_id, component, unit, shard, events, quantity, cost_usd, input_tokens, input_cost, cached_tokens,
    cached_cost, cache_write_tokens, cache_write_cost, output_tokens, output_cost, reasoning_tokens)
  select e.project_id, date_trunc('hour', e.created_at, 'UTC'), e.meter_type, e.model, coalesce(e.ai_provider_id, ''),
    coalesce(e.agent_id, ''), coalesce(e.source, ''), coalesce(e.publisher_project_id, ''), p.component, p.unit, own,
    sum(p.events), sum(p.quantity), sum(p.cost_usd), sum(p.input_tokens), sum(p.input_cost), sum(p.cached_tokens),
    sum(p.cached_cost), sum(p.cache_write_tokens), sum(p.cache_write_cost), sum(p.output_tokens), sum(p.output_cost),
    sum(p.reasoning_tokens)
  from unnest(added) e cross join lateral usage_parts(e.components, e.cost_usd, e.event_count) p
  group by 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
  on conflict (project_id, hour, meter_type, model, ai_provider_id, agent_id, source, publisher_project_id, component, unit, shard)
  do update set
    events = r.events + excluded.events, quantity = r.quantity + excluded.quantity,
    cost_usd = add_cost(r.cost_usd, excluded.cost_usd),
    input_tokens = r.input_tokens + excluded.input_tokens, input_cost = add_cost(r.input_cost, excluded.input_cost),
    cached_tokens = r.cached_tokens + excluded.cached_tokens, cached_cost = add_cost(r.cached_cost, excluded.cached_cost),
    cache_write_tokens = r.cache_write_tokens + excluded.cache_write_tokens,
    cache_write_cost = add_cost(r.cache_write_cost, excluded.cache_write_cost),
    output_tokens = r.output_tokens + excluded.output_tokens, output_cost = add_cost(r.output_cost, excluded.output_cost),
    reasoning_tokens = r.reasoning_tokens + excluded.reasoning_tokens;
end $$;

-- A roll-up replaces rows that the sums contain already.
create function usage_added() returns trigger language plpgsql as $$
begin
  if current_setting('muster.usage_rollup', true) = 'on' then
    return null;
  end if;
  perform add_usage(array_agg(c::usage_events)) from changed c;
  return null;
end $$;
create trigger usage_events_added after insert on usage_events referencing new table as changed
  for each statement execute function usage_added();

-- Folds the shards of a past hour into one. Returns the number of removed rows.
create function fold_usage(past timestamptz) returns bigint language plpgsql as $$
declare
  sums bigint;
  rollups bigint;
begin
  perform pg_advisory_xact_lock(1836413813);
  with split as (
    select project_id, scope, ref, meter_type from usage_sums where hour = past group by 1, 2, 3, 4 having count(*) > 1
  ), removed as (
    delete from usage_sums s using split p
    where s.hour = past and s.project_id = p.project_id and s.scope = p.scope and s.ref = p.ref and s.meter_type = p.meter_type
    returning s.*
  ), folded as (
    insert into usage_sums
      (project_id, scope, ref, hour, meter_type, shard, events, tokens, cost_usd, metered, priced, unpriced)
    select project_id, scope, ref, hour, meter_type, -1, sum(events), sum(tokens), sum(cost_usd), sum(metered), sum(priced),
      sum(unpriced)
    from removed group by 1, 2, 3, 4, 5
    returning 1
  ) select (select count(*) from removed) - (select count(*) from folded) into sums;
  with split as (
    select project_id, meter_type, model, ai_provider_id, agent_id, source, publisher_project_id, component, unit
    from usage_rollups where hour = past group by 1, 2, 3, 4, 5, 6, 7, 8, 9 having count(*) > 1
  ), removed as (
    delete from usage_rollups r using split p
    where r.hour = past
      and (r.project_id, r.meter_type, r.model, r.ai_provider_id, r.agent_id, r.source, r.publisher_project_id, r.component, r.unit)
        = (p.project_id, p.meter_type, p.model, p.ai_provider_id, p.agent_id, p.source, p.publisher_project_id, p.component, p.unit)
    returning r.*
  ), folded as (
    insert into usage_rollups (project_id, hour, meter_type, model, ai_provider_id, agent_id, source, publisher_project_id,
      component, unit, shard, events, quantity, cost_usd, input_tokens, input_cost, cached_tokens, cached_cost,
      cache_write_tokens, cache_write_cost, output_tokens, output_cost, reasoning_tokens)
    select project_id, hour, meter_type, model, ai_provider_id, agent_id, source, publisher_project_id, component, unit, -1,
      sum(events), sum(quantity), sum(cost_usd), sum(input_tokens), sum(input_cost), sum(cached_tokens), sum(cached_cost),
      sum(cache_write_tokens), sum(cache_write_cost), sum(output_tokens), sum(output_cost), sum(reasoning_tokens)
    from removed group by 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
    returning 1
  ) select (select count(*) from removed) - (select count(*) from folded) into rollups;
  return sums + rollups;
end $$;

-- The price of a unit of a component from a time on.
create table prices (
  id text primary key,
  -- Scope: the overrides of an AI provider, the prices of a project, or both null for all projects. An override has the
  -- project of its provider.
  project_id text references projects (id) on delete cascade,
  ai_provider_id text,
  meter_type text not null check (meter_type in ('llm_tokens', 'compute_execution', 'tool_execution', 'api_request', 'storage')),
  provider text not null, model text not null, component text not null, unit text not null,
  unit_price numeric not null check (unit_price >= 0),
  effective_from timestamptz(3) not null,
  -- SRN of the tool or agent to whose calls or turns it adds a component.
  resource text,
  quantity json,
  created_at timestamptz(3) not null default now(),
  -- Time at which a price in effect was ended; null for none. From then on its item has no price in this scope until another
  -- one starts.
  effective_until timestamptz(3),
  -- It may apply to one service tier only, and only to calls whose prompt has more tokens.
  tier text, above_tokens bigint check (above_tokens > 0),
  check (ai_provider_id is null or project_id is not null),
  check (resource is null or project_id is not null and ai_provider_id is null),
  check (quantity is null or resource is not null)
);
-- Finds the latest price of a component.
create unique index prices_identity on prices
  (project_id, ai_provider_id, provider, model, resource, component, tier, above_tokens, effective_from) nulls not distinct;
create index prices_project on prices (project_id, created_at, id);
create index prices_provider on prices (ai_provider_id, created_at, id) where ai_provider_id is not null;

create table usage_thresholds (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  metric text not null check (metric in ('cost_usd', 'tokens')),
  "window" text not null check ("window" in ('calendar_month', 'rolling_24h')),
  threshold numeric not null check (threshold > 0),
  last_fired_at timestamptz(3),
  -- Month in which it last fired.
  fired_window_key text,
  -- Whether a rolling threshold fires when its value is reached; not again until usage has fallen below 90 %.
  armed boolean not null default true,
  created_at timestamptz(3) not null default now()
);
create index usage_thresholds_project on usage_thresholds (project_id, created_at, id);
create index usage_thresholds_disarmed on usage_thresholds (project_id) where not armed;

create table activity_entries (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  kind text not null, severity text not null, summary text not null,
  -- Presented as written, never queried.
  detail json,
  -- Loose IDs, here and in exceptions.
  orchestration_run_id text, agent_id text, generation_id text, ref_id text,
  -- Time of the insert by the clock of the database, not the start of the transaction: it bounds how far back
  -- uncommitted entries may be for readers that follow the feed.
  created_at timestamptz(3) not null default clock_timestamp()
);
create index activity_entries_project on activity_entries (project_id, created_at, id);
create index activity_entries_kind on activity_entries (project_id, kind, created_at, id);
create index activity_entries_serious on activity_entries (project_id, created_at, id) where severity <> 'info';
create index activity_entries_agent on activity_entries (agent_id, created_at, id) where agent_id is not null;
create index activity_entries_generation on activity_entries (generation_id, created_at, id) where generation_id is not null;
create index activity_entries_run on activity_entries (orchestration_run_id, created_at, id)
  where orchestration_run_id is not null;
create index activity_entries_created on activity_entries (created_at);

create table exceptions (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  status text not null default 'open',
  severity text not null, kind text not null, title text not null, detail json,
  -- Equal for occurrences of one problem; null is never folded.
  dedup_key text,
  occurrence_count bigint not null default 1,
  last_seen_at timestamptz(3) not null default now(),
  orchestration_run_id text, node_id text, agent_id text, guardrail_version text,
  acknowledged_by text, resolved_by text, resolution_note text,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);
create index exceptions_project on exceptions (project_id, created_at desc, id desc);
create index exceptions_unresolved on exceptions (project_id, status, created_at desc, id desc) where status <> 'resolved';
create unique index exceptions_dedup on exceptions (project_id, dedup_key) where status <> 'resolved';
create index exceptions_kind on exceptions (project_id, kind, created_at desc, id desc);
create index exceptions_agent on exceptions (agent_id) where agent_id is not null;
create index exceptions_run on exceptions (orchestration_run_id) where orchestration_run_id is not null;
call count_table('exceptions');

-- Expired records that a sweep left in a project, at the last measurement. No row without any.
create table retention_backlogs (
  project_id text not null references projects (id) on delete cascade,
  setting text not null,
  records bigint not null,
  since timestamptz(3) not null default now(), measured_at timestamptz(3) not null default now(),
  primary key (project_id, setting)
);
