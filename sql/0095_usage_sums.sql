-- Usage added up as it is written, in the transaction that writes it: exact in every snapshot, whatever happens to writers.
-- Quotas, thresholds and reports read these sums in place of events.

alter table quotas add column reserve boolean not null default false;

-- What a project, each of its agents and each of its end users used in an hour, by meter.
create table usage_sums (
  project_id text not null references projects (id) on delete cascade,
  scope text not null check (scope in ('project', 'agent', 'actor')),
  -- Id of the agent or actor, whatever has become of it; empty for the project.
  ref text not null,
  hour timestamptz not null,
  meter_type text not null,
  -- Transactions that run at once count in different shards; -1 is what the shards of a past hour were folded into.
  shard smallint not null,
  events bigint not null,
  tokens bigint not null,
  cost_usd numeric not null,
  -- Of llm_tokens events other than embeddings: how many there are, have a priced component, have an unpriced billable one.
  metered bigint not null,
  priced bigint not null,
  unpriced bigint not null,
  primary key (project_id, scope, ref, hour, meter_type, shard)
) with (fillfactor = 50);
create index usage_sums_hour on usage_sums (hour);

-- The same by what reports group by, as long as that takes few values. What is null in an event is empty here.
create table usage_rollups (
  project_id text not null references projects (id) on delete cascade,
  hour timestamptz not null,
  meter_type text not null,
  model text not null,
  ai_provider_id text not null,
  agent_id text not null,
  source text not null,
  publisher_project_id text not null,
  -- Empty for the events themselves with their tokens: a turn writes one row. Other components have rows of their own.
  component text not null,
  unit text not null,
  shard smallint not null,
  events bigint not null,
  quantity numeric not null,
  -- Of what is priced; null when nothing is.
  cost_usd numeric,
  input_tokens bigint not null,
  input_cost numeric,
  cached_tokens bigint not null,
  cached_cost numeric,
  cache_write_tokens bigint not null,
  cache_write_cost numeric,
  output_tokens bigint not null,
  output_cost numeric,
  reasoning_tokens bigint not null,
  primary key (project_id, hour, meter_type, model, ai_provider_id, agent_id, source, publisher_project_id, component, unit, shard)
) with (fillfactor = 50);
create index usage_rollups_hour on usage_rollups (hour);

-- Reports narrowed to what the roll-ups do not know read events.
create index usage_events_agent on usage_events (agent_id, created_at, id) where agent_id is not null;
create index usage_events_run on usage_events (orchestration_run_id) where orchestration_run_id is not null;
create index usage_events_trace on usage_events (trace_id) where trace_id is not null;

-- The components of an event: its tokens in one row with the event itself, every other component in a row of its own.
create function usage_parts(components jsonb, event_cost numeric) returns table (
  component text, unit text, events bigint, quantity numeric, cost_usd numeric,
  input_tokens bigint, input_cost numeric, cached_tokens bigint, cached_cost numeric, cache_write_tokens bigint,
  cache_write_cost numeric, output_tokens bigint, output_cost numeric, reasoning_tokens bigint
) language sql immutable as $$
  with c as (
    select *, c.unit = 'token' and c.quantity = trunc(c.quantity) and c.component in ('input_tokens', 'cached_tokens', 'cache_write_tokens', 'output_tokens', 'reasoning_tokens') as token
    from jsonb_to_recordset(components) as c (component text, unit text, quantity numeric, cost_usd numeric)
  )
  select '', '', 1::bigint, 0::numeric, event_cost,
    coalesce(sum(c.quantity) filter (where c.component = 'input_tokens'), 0)::bigint, sum(c.cost_usd) filter (where c.component = 'input_tokens'),
    coalesce(sum(c.quantity) filter (where c.component = 'cached_tokens'), 0)::bigint, sum(c.cost_usd) filter (where c.component = 'cached_tokens'),
    coalesce(sum(c.quantity) filter (where c.component = 'cache_write_tokens'), 0)::bigint, sum(c.cost_usd) filter (where c.component = 'cache_write_tokens'),
    coalesce(sum(c.quantity) filter (where c.component = 'output_tokens'), 0)::bigint, sum(c.cost_usd) filter (where c.component = 'output_tokens'),
    coalesce(sum(c.quantity) filter (where c.component = 'reasoning_tokens'), 0)::bigint
  from c where c.token
  union all
  select c.component, c.unit, 0, c.quantity, c.cost_usd, 0, null, 0, null, 0, null, 0, null, 0 from c where not c.token
$$;

-- Whether a quantity of an event is one that a price could cover and none does.
create function usage_unpriced(components jsonb) returns boolean language sql immutable as $$
  select exists (
    select 1 from jsonb_to_recordset(components) as c (quantity numeric, billable boolean, unit_price numeric)
    where c.billable and c.quantity > 0 and c.unit_price is null)
$$;

-- A shard that nobody else writes to until this transaction ends; the one that it counts rows in, where it does.
create function usage_shard() returns smallint language plpgsql as $$
begin
  for free in 0..1023 loop
    if pg_try_advisory_xact_lock(1836413812, free) then
      return free;
    end if;
  end loop;
  raise exception 'more than 1024 transactions add up usage at once' using errcode = 'too_many_connections';
end $$;

-- Nothing of nothing priced stays null.
create function add_cost(a numeric, b numeric) returns numeric language sql immutable
return coalesce(a + b, a, b);

-- Adds events that were written. Its plans are kept: made anew for each array they take 0.4 ms, running them 0.1.
create function add_usage(added usage_events[]) returns void language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
  own smallint := usage_shard();
begin
  insert into usage_sums as s (project_id, scope, ref, hour, meter_type, shard, events, tokens, cost_usd, metered, priced, unpriced)
  select e.project_id, r.scope, r.ref, e.hour, e.meter_type, own, count(*), sum(e.tokens), coalesce(sum(e.cost_usd), 0),
    count(*) filter (where e.model_use), count(*) filter (where e.model_use and e.cost_usd is not null), count(*) filter (where e.model_use and e.unpriced)
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

  insert into usage_rollups as r (project_id, hour, meter_type, model, ai_provider_id, agent_id, source, publisher_project_id, component, unit, shard,
    events, quantity, cost_usd, input_tokens, input_cost, cached_tokens, cached_cost, cache_write_tokens, cache_write_cost, output_tokens, output_cost, reasoning_tokens)
  select e.project_id, date_trunc('hour', e.created_at, 'UTC'), e.meter_type, e.model, coalesce(e.ai_provider_id, ''), coalesce(e.agent_id, ''),
    coalesce(e.source, ''), coalesce(e.publisher_project_id, ''), p.component, p.unit, own,
    sum(p.events), sum(p.quantity), sum(p.cost_usd), sum(p.input_tokens), sum(p.input_cost), sum(p.cached_tokens), sum(p.cached_cost),
    sum(p.cache_write_tokens), sum(p.cache_write_cost), sum(p.output_tokens), sum(p.output_cost), sum(p.reasoning_tokens)
  from unnest(added) e cross join lateral usage_parts(e.components, e.cost_usd) p
  group by 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
  on conflict (project_id, hour, meter_type, model, ai_provider_id, agent_id, source, publisher_project_id, component, unit, shard) do update set
    events = r.events + excluded.events, quantity = r.quantity + excluded.quantity,
    cost_usd = add_cost(r.cost_usd, excluded.cost_usd),
    input_tokens = r.input_tokens + excluded.input_tokens, input_cost = add_cost(r.input_cost, excluded.input_cost),
    cached_tokens = r.cached_tokens + excluded.cached_tokens, cached_cost = add_cost(r.cached_cost, excluded.cached_cost),
    cache_write_tokens = r.cache_write_tokens + excluded.cache_write_tokens, cache_write_cost = add_cost(r.cache_write_cost, excluded.cache_write_cost),
    output_tokens = r.output_tokens + excluded.output_tokens, output_cost = add_cost(r.output_cost, excluded.output_cost),
    reasoning_tokens = r.reasoning_tokens + excluded.reasoning_tokens;
end $$;

-- Folds the shards of an hour that is over, where there are several, into one. Returns how many rows went.
create function fold_usage(past timestamptz) returns bigint language plpgsql as $$
declare
  sums bigint;
  rollups bigint;
begin
  perform pg_advisory_xact_lock(1836413813);
  with split as (
    select project_id, scope, ref, meter_type from usage_sums where hour = past group by 1, 2, 3, 4 having count(*) > 1
  ), gone as (
    delete from usage_sums s using split p
    where s.hour = past and s.project_id = p.project_id and s.scope = p.scope and s.ref = p.ref and s.meter_type = p.meter_type
    returning s.*
  ), kept as (
    insert into usage_sums (project_id, scope, ref, hour, meter_type, shard, events, tokens, cost_usd, metered, priced, unpriced)
    select project_id, scope, ref, hour, meter_type, -1, sum(events), sum(tokens), sum(cost_usd), sum(metered), sum(priced), sum(unpriced)
    from gone group by 1, 2, 3, 4, 5
    returning 1
  ) select (select count(*) from gone) - (select count(*) from kept) into sums;
  with split as (
    select project_id, meter_type, model, ai_provider_id, agent_id, source, publisher_project_id, component, unit
    from usage_rollups where hour = past group by 1, 2, 3, 4, 5, 6, 7, 8, 9 having count(*) > 1
  ), gone as (
    delete from usage_rollups r using split p
    where r.hour = past
      and (r.project_id, r.meter_type, r.model, r.ai_provider_id, r.agent_id, r.source, r.publisher_project_id, r.component, r.unit)
        = (p.project_id, p.meter_type, p.model, p.ai_provider_id, p.agent_id, p.source, p.publisher_project_id, p.component, p.unit)
    returning r.*
  ), kept as (
    insert into usage_rollups (project_id, hour, meter_type, model, ai_provider_id, agent_id, source, publisher_project_id, component, unit, shard,
      events, quantity, cost_usd, input_tokens, input_cost, cached_tokens, cached_cost, cache_write_tokens, cache_write_cost, output_tokens, output_cost, reasoning_tokens)
    select project_id, hour, meter_type, model, ai_provider_id, agent_id, source, publisher_project_id, component, unit, -1,
      sum(events), sum(quantity), sum(cost_usd), sum(input_tokens), sum(input_cost), sum(cached_tokens), sum(cached_cost),
      sum(cache_write_tokens), sum(cache_write_cost), sum(output_tokens), sum(output_cost), sum(reasoning_tokens)
    from gone group by 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
    returning 1
  ) select (select count(*) from gone) - (select count(*) from kept) into rollups;
  return sums + rollups;
end $$;

create function usage_added() returns trigger language plpgsql as $$
begin
  perform add_usage(array_agg(c::usage_events)) from changed c;
  return null;
end $$;

lock table usage_events in share row exclusive mode;
select add_usage(array_agg(e)) from usage_events e having count(*) > 0;
create trigger usage_events_added after insert on usage_events referencing new table as changed
  for each statement execute function usage_added();
