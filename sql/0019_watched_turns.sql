-- breaking: false

-- When the first text of a streamed turn arrived.
alter table generations add column first_text_at timestamptz(3);

-- Billable quantities without a price, in the roll-ups of usage. Rows of earlier folds have none until the usage of their
-- project is reprocessed: reading all events would lock the table for as long as they take.
alter table folded_usage_rollups
  add column unpriced_quantity numeric not null default 0,
  add column unpriced_input_tokens bigint not null default 0, add column unpriced_cached_tokens bigint not null default 0,
  add column unpriced_cache_write_tokens bigint not null default 0, add column unpriced_output_tokens bigint not null default 0;
-- A fold that began before, without the columns, fails and is repeated.
alter table folded_usage_rollups
  alter column unpriced_quantity drop default,
  alter column unpriced_input_tokens drop default, alter column unpriced_cached_tokens drop default,
  alter column unpriced_cache_write_tokens drop default, alter column unpriced_output_tokens drop default;

drop view usage_rollups;
drop function usage_parts(jsonb, numeric, integer);
drop function usage_parts(jsonb, numeric);

-- Returns the components of an event: one row for the event with its tokens, one for every other component.
create function usage_parts(components jsonb, event_cost numeric) returns table (
  component text, unit text, events bigint, quantity numeric, cost_usd numeric,
  input_tokens bigint, input_cost numeric, cached_tokens bigint, cached_cost numeric, cache_write_tokens bigint,
  cache_write_cost numeric, output_tokens bigint, output_cost numeric, reasoning_tokens bigint, unpriced_quantity numeric,
  unpriced_input_tokens bigint, unpriced_cached_tokens bigint, unpriced_cache_write_tokens bigint,
  unpriced_output_tokens bigint
) language sql immutable as $$
  with c as (
    select *, c.unit = 'token' and c.quantity = trunc(c.quantity) and c.component in
      ('input_tokens', 'cached_tokens', 'cache_write_tokens', 'output_tokens', 'reasoning_tokens') as token,
      case when c.billable and c.unit_price is null then c.quantity else 0 end as unpriced
    from jsonb_to_recordset(components)
      as c (component text, unit text, quantity numeric, cost_usd numeric, billable boolean, unit_price numeric)
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
    coalesce(sum(c.quantity) filter (where c.component = 'reasoning_tokens'), 0)::bigint,
    0::numeric,
    coalesce(sum(c.unpriced) filter (where c.component = 'input_tokens'), 0)::bigint,
    coalesce(sum(c.unpriced) filter (where c.component = 'cached_tokens'), 0)::bigint,
    coalesce(sum(c.unpriced) filter (where c.component = 'cache_write_tokens'), 0)::bigint,
    coalesce(sum(c.unpriced) filter (where c.component = 'output_tokens'), 0)::bigint
  from c where c.token
  union all
  select c.component, c.unit, 0, c.quantity, c.cost_usd, 0, null, 0, null, 0, null, 0, null, 0, c.unpriced, 0, 0, 0, 0
  from c where not c.token
$$;

-- Returns the components of a row, as the function with two arguments, with the number of its events.
create function usage_parts(components jsonb, event_cost numeric, event_count integer) returns table (
  component text, unit text, events bigint, quantity numeric, cost_usd numeric,
  input_tokens bigint, input_cost numeric, cached_tokens bigint, cached_cost numeric, cache_write_tokens bigint,
  cache_write_cost numeric, output_tokens bigint, output_cost numeric, reasoning_tokens bigint, unpriced_quantity numeric,
  unpriced_input_tokens bigint, unpriced_cached_tokens bigint, unpriced_cache_write_tokens bigint,
  unpriced_output_tokens bigint
) language sql immutable as $$
  select p.component, p.unit, p.events * event_count, p.quantity, p.cost_usd, p.input_tokens, p.input_cost, p.cached_tokens,
    p.cached_cost, p.cache_write_tokens, p.cache_write_cost, p.output_tokens, p.output_cost, p.reasoning_tokens,
    p.unpriced_quantity, p.unpriced_input_tokens, p.unpriced_cached_tokens, p.unpriced_cache_write_tokens,
    p.unpriced_output_tokens
  from usage_parts(components, event_cost) p
$$;

create view usage_rollups as
  select project_id, hour, meter_type, model, ai_provider_id, agent_id, source, publisher_project_id, component, unit, shard,
    events, quantity, cost_usd, input_tokens, input_cost, cached_tokens, cached_cost, cache_write_tokens, cache_write_cost,
    output_tokens, output_cost, reasoning_tokens, unpriced_quantity, unpriced_input_tokens, unpriced_cached_tokens,
    unpriced_cache_write_tokens, unpriced_output_tokens
  from folded_usage_rollups
  union all
  select u.project_id, date_trunc('hour', e.created_at, 'UTC'), e.meter_type, e.model, coalesce(e.ai_provider_id, ''),
    coalesce(e.agent_id, ''), coalesce(e.source, ''), coalesce(e.publisher_project_id, ''), p.component, p.unit, -1::smallint,
    p.events, p.quantity, p.cost_usd, p.input_tokens, p.input_cost, p.cached_tokens, p.cached_cost, p.cache_write_tokens,
    p.cache_write_cost, p.output_tokens, p.output_cost, p.reasoning_tokens, p.unpriced_quantity, p.unpriced_input_tokens,
    p.unpriced_cached_tokens, p.unpriced_cache_write_tokens, p.unpriced_output_tokens
  from unfolded_usage u
    cross join lateral (select * from usage_events e where e.id = u.event_id offset 0) e
    cross join lateral usage_parts(e.components, e.cost_usd, e.event_count) p;

create or replace function add_usage(added usage_events[]) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
  insert into folded_usage_sums as s
    (project_id, scope, ref, hour, meter_type, shard, events, tokens, cost_usd, metered, priced, unpriced)
  select e.project_id, r.scope, r.ref, e.hour, e.meter_type, -1, sum(e.event_count), sum(e.tokens), coalesce(sum(e.cost_usd), 0),
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

  insert into folded_usage_rollups as r (project_id, hour, meter_type, model, ai_provider_id, agent_id, source,
    publisher_project_id, component, unit, shard, events, quantity, cost_usd, input_tokens, input_cost, cached_tokens,
    cached_cost, cache_write_tokens, cache_write_cost, output_tokens, output_cost, reasoning_tokens, unpriced_quantity,
    unpriced_input_tokens, unpriced_cached_tokens, unpriced_cache_write_tokens, unpriced_output_tokens)
  select e.project_id, date_trunc('hour', e.created_at, 'UTC'), e.meter_type, e.model, coalesce(e.ai_provider_id, ''),
    coalesce(e.agent_id, ''), coalesce(e.source, ''), coalesce(e.publisher_project_id, ''), p.component, p.unit, -1,
    sum(p.events), sum(p.quantity), sum(p.cost_usd), sum(p.input_tokens), sum(p.input_cost), sum(p.cached_tokens),
    sum(p.cached_cost), sum(p.cache_write_tokens), sum(p.cache_write_cost), sum(p.output_tokens), sum(p.output_cost),
    sum(p.reasoning_tokens), sum(p.unpriced_quantity), sum(p.unpriced_input_tokens), sum(p.unpriced_cached_tokens),
    sum(p.unpriced_cache_write_tokens), sum(p.unpriced_output_tokens)
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
    reasoning_tokens = r.reasoning_tokens + excluded.reasoning_tokens,
    unpriced_quantity = r.unpriced_quantity + excluded.unpriced_quantity,
    unpriced_input_tokens = r.unpriced_input_tokens + excluded.unpriced_input_tokens,
    unpriced_cached_tokens = r.unpriced_cached_tokens + excluded.unpriced_cached_tokens,
    unpriced_cache_write_tokens = r.unpriced_cache_write_tokens + excluded.unpriced_cache_write_tokens,
    unpriced_output_tokens = r.unpriced_output_tokens + excluded.unpriced_output_tokens;
end $$;
