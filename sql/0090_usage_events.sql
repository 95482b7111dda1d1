-- Usage: one row per billable occurrence, priced when it is written and never changed.

create table usage_events (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  -- What a repeat would be written under again.
  idempotency_key text not null,
  meter_type text not null check (meter_type in ('llm_tokens', 'compute_execution', 'tool_execution', 'api_request', 'storage')),
  provider text not null,
  model text not null,
  -- Plain text, all of them: an event outlives what it names.
  ai_provider_id text,
  agent_id text,
  generation_id text,
  trace_id text,
  orchestration_run_id text,
  node_id text,
  tool_id text,
  tool_action text,
  actor_id text,
  session_id text,
  trigger_id text,
  action_id text,
  source text,
  publisher_project_id text,
  -- The sum of the priced components; null when none is priced.
  cost_usd numeric,
  -- What tokens quotas and thresholds count: uncached input, cached input and output.
  tokens bigint not null default 0,
  -- [{component, quantity, unit, billable, unit_price, cost_usd, price_id}], numbers as JSON numbers; the last three are
  -- null in an unpriced one.
  components jsonb not null,
  created_at timestamptz(3) not null default now()
);
create unique index usage_events_key on usage_events (idempotency_key);
-- A list reads it backwards: where keys rise, pages stay full. What a window used is summed from it alone.
create index usage_events_project on usage_events (project_id, created_at, id) include (tokens, cost_usd);
create index usage_events_generation on usage_events (generation_id) where generation_id is not null;
create index usage_events_session on usage_events (session_id, created_at, id) where session_id is not null;
create index usage_events_actor on usage_events (actor_id, created_at, id) where actor_id is not null;
-- What keeps a provider from being deleted.
create index usage_events_provider on usage_events (ai_provider_id) where ai_provider_id is not null;

create trigger row_counts_inserted after insert on usage_events referencing new table as changed
  for each statement execute function count_rows();
create trigger row_counts_deleted after delete on usage_events referencing old table as changed
  for each statement execute function count_rows();
create trigger row_counts_kept before update of project_id on usage_events
  for each statement execute function refuse_other_scope();

-- Numbers on invoices do not change.
create function refuse_usage_change() returns trigger language plpgsql as $$
begin
  raise exception 'usage events are never changed';
end $$;
create trigger usage_events_frozen before update on usage_events
  for each statement execute function refuse_usage_change();
