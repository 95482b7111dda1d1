-- breaking: false

-- The usage of a run is kept as it grows: a fold adds its events to a row of the run. The function run_usage is exact in
-- every snapshot: the row of the run and its events that are not folded, or all its events if it has no row.

-- Writers that began before would note their events without a run.
lock table usage_events in share row exclusive mode;

-- The run of the event, empty without one: the key is the index of the events of a run that are not folded.
alter table unfolded_usage add column run_id text not null default '';
update unfolded_usage u set run_id = e.orchestration_run_id from usage_events e
where e.id = u.event_id and e.orchestration_run_id is not null;
alter table unfolded_usage drop constraint unfolded_usage_pkey;
alter table unfolded_usage add primary key (project_id, run_id, event_id);

-- Folded usage of runs. A run has a row from the first fold of its usage on, unless it was deleted; without it, its events
-- are read.
create table folded_run_usage (
  -- Loose: a foreign key would lock the run, and wait for who locks it. Deleted with the run (drop_run_usage).
  run_id text primary key,
  project_id text not null,
  events bigint not null, tokens bigint not null,
  -- Null if no event is priced.
  cost_usd numeric,
  -- Model calls other than embeddings: all, and those with a price.
  metered bigint not null, priced bigint not null,
  tool_calls bigint not null,
  -- Quantities with their parts. Input tokens are uncached.
  input_tokens numeric not null, cached_tokens numeric not null, cache_write_tokens numeric not null,
  output_tokens numeric not null, reasoning_tokens numeric not null
) with (fillfactor = 70);

-- What an event adds to the usage of its run.
create function usage_figures(event usage_events) returns table (
  events bigint, tokens bigint, cost_usd numeric, metered bigint, priced bigint, tool_calls bigint,
  input_tokens numeric, cached_tokens numeric, cache_write_tokens numeric, output_tokens numeric, reasoning_tokens numeric
) language sql immutable as $$
  select event.event_count::bigint, event.tokens, event.cost_usd,
    case when event.meter_type = 'llm_tokens' and event.source is distinct from 'embedding' then event.event_count else 0 end::bigint,
    case when event.meter_type = 'llm_tokens' and event.source is distinct from 'embedding' and event.cost_usd is not null
      then event.event_count else 0 end::bigint,
    case when event.meter_type = 'tool_execution' then event.event_count else 0 end::bigint,
    coalesce(sum(c.quantity) filter (where c.component in ('input_tokens', 'audio_input_tokens', 'image_input_tokens')), 0),
    coalesce(sum(c.quantity) filter (where c.component in ('cached_tokens', 'cached_audio_tokens')), 0),
    coalesce(sum(c.quantity) filter (where c.component in
      ('cache_write_tokens', 'cache_write_1h_tokens', 'cache_write_12h_tokens')), 0),
    coalesce(sum(c.quantity) filter (where c.component in
      ('output_tokens', 'audio_output_tokens', 'image_output_tokens')), 0),
    coalesce(sum(c.quantity) filter (where c.component = 'reasoning_tokens'), 0)
  from jsonb_to_recordset(event.components) as c (component text, quantity numeric)
$$;

-- Parts of the usage of a run in the snapshot of the query that calls it; none without usage. Not inlined: with the events
-- that a plan of both cases expects, queries would cost enough to be compiled (jit). The lateral queries are not flattened,
-- so that events are read by their keys whatever the statistics say.
create function run_usage(run text) returns table (
  project_id text, events bigint, tokens bigint, cost_usd numeric, metered bigint, priced bigint, tool_calls bigint,
  input_tokens numeric, cached_tokens numeric, cache_write_tokens numeric, output_tokens numeric, reasoning_tokens numeric
) language plpgsql stable rows 1 as $$
declare
  folded folded_run_usage;
begin
  select * into folded from folded_run_usage f where f.run_id = run;
  if not found then
    return query
    select e.project, q.*
    from (
      select e.project_id as project, e as event from usage_events e where e.orchestration_run_id = run offset 0
    ) e cross join lateral usage_figures(e.event) q;
    return;
  end if;
  return query
  select folded.project_id, folded.events, folded.tokens, folded.cost_usd, folded.metered, folded.priced, folded.tool_calls,
    folded.input_tokens, folded.cached_tokens, folded.cache_write_tokens, folded.output_tokens, folded.reasoning_tokens
  union all
  select folded.project_id, q.*
  from unfolded_usage u
    cross join lateral (select e as event from usage_events e where e.id = u.event_id offset 0) e
    cross join lateral usage_figures(e.event) q
  where u.project_id = folded.project_id and u.run_id = run;
end $$;

-- Adds events that a fold took from unfolded_usage to the rows of their runs. Requires the lock of usage_fold_lock. A new
-- row has all folded events of its run, of which some may be older than the table.
create function add_run_usage(added usage_events[]) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
  if not exists (select from unnest(added) a where a.orchestration_run_id is not null) then
    return;
  end if;
  insert into folded_run_usage as f (run_id, project_id, events, tokens, cost_usd, metered, priced, tool_calls,
    input_tokens, cached_tokens, cache_write_tokens, output_tokens, reasoning_tokens)
  with runs as materialized (
    select a.id, exists (select from folded_run_usage f where f.run_id = a.id) as folded
    from (select distinct orchestration_run_id as id from unnest(added) where orchestration_run_id is not null) a
    where exists (select from orchestration_runs r where r.id = a.id)
  ), taken as (
    select a as event from unnest(added) a join runs r on r.id = a.orchestration_run_id and r.folded
    union all
    select e.event from runs r cross join lateral (
      select e as event from usage_events e where e.orchestration_run_id = r.id and not exists (
        select from unfolded_usage u where u.project_id = e.project_id and u.run_id = r.id and u.event_id = e.id)
      offset 0) e
    where not r.folded
  )
  select (t.event).orchestration_run_id, (t.event).project_id, sum(q.events), sum(q.tokens), sum(q.cost_usd),
    sum(q.metered), sum(q.priced), sum(q.tool_calls), sum(q.input_tokens), sum(q.cached_tokens),
    sum(q.cache_write_tokens), sum(q.output_tokens), sum(q.reasoning_tokens)
  from taken t cross join lateral usage_figures(t.event) q
  group by 1, 2
  on conflict (run_id) do update set
    events = f.events + excluded.events, tokens = f.tokens + excluded.tokens, cost_usd = add_cost(f.cost_usd, excluded.cost_usd),
    metered = f.metered + excluded.metered, priced = f.priced + excluded.priced, tool_calls = f.tool_calls + excluded.tool_calls,
    input_tokens = f.input_tokens + excluded.input_tokens, cached_tokens = f.cached_tokens + excluded.cached_tokens,
    cache_write_tokens = f.cache_write_tokens + excluded.cache_write_tokens,
    output_tokens = f.output_tokens + excluded.output_tokens, reasoning_tokens = f.reasoning_tokens + excluded.reasoning_tokens;
end $$;

create or replace function usage_added() returns trigger language plpgsql as $$
begin
  if current_setting('muster.usage_rollup', true) = 'on' then
    insert into row_count_shards as c (scope, table_name, shard, count)
    select project_id, 'usage_events', counter_shard(), count(*) from changed group by 1
    on conflict (scope, table_name, shard) do update set count = c.count + excluded.count;
  else
    insert into unfolded_usage (project_id, run_id, event_id)
    select project_id, coalesce(orchestration_run_id, ''), id from changed;
  end if;
  return null;
end $$;

create or replace function fold_usage(project text, most integer) returns integer language plpgsql as $$
declare
  events usage_events[];
  number integer;
begin
  if not pg_try_advisory_xact_lock(usage_fold_lock(project)) then
    return null;
  end if;
  -- Before the rows of the project, as a delete of it locks them.
  perform from projects where id = project for key share skip locked;
  if not found then
    return null;
  end if;
  with taken as (
    delete from unfolded_usage where project_id = project and (run_id, event_id) in (
      select run_id, event_id from unfolded_usage where project_id = project order by run_id, event_id limit most)
    returning event_id
  ) select count(*), array_agg(r.event) filter (where (r.event).id is not null) into number, events
  from (select (select e from usage_events e where e.id = t.event_id) as event from taken t) r;
  if number > 0 then
    insert into row_count_shards as c (scope, table_name, shard, count) values (project, 'usage_events', -1, number)
    on conflict (scope, table_name, shard) do update set count = c.count + excluded.count;
  end if;
  if events is not null then
    perform add_usage(events);
    perform add_run_usage(events);
  end if;
  return number;
end $$;

-- Waits for folds of the project, and lets none begin before the end of the transaction: a fold would make the row of a
-- run whose deletion it does not see.
create function drop_run_usage() returns trigger language plpgsql as $$
begin
  perform pg_advisory_xact_lock_shared(usage_fold_lock(p.id))
  from (select distinct project_id as id from changed order by 1 offset 0) p;
  delete from folded_run_usage where run_id in (select id from changed);
  return null;
end $$;
create trigger orchestration_runs_usage after delete on orchestration_runs referencing old table as changed
  for each statement execute function drop_run_usage();
