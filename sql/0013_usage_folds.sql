-- breaking: false

-- Usage is summed after the commit: a transaction notes its events in unfolded_usage, and a fold adds them to the sums.
-- The views usage_sums, usage_rollups and row_counts are exact in every snapshot: rows that are folded, and events that
-- are not.

-- Events that are not in the folded tables yet. Deleted with their project at the commit (drop_row_counts).
create table unfolded_usage (
  -- Loose, both: a foreign key would cost every event a second check.
  project_id text not null,
  event_id text not null,
  primary key (project_id, event_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

alter table usage_sums rename to folded_usage_sums;
alter index usage_sums_pkey rename to folded_usage_sums_pkey;
alter index usage_sums_hour rename to folded_usage_sums_hour;
alter table usage_rollups rename to folded_usage_rollups;
alter index usage_rollups_pkey rename to folded_usage_rollups_pkey;
alter index usage_rollups_hour rename to folded_usage_rollups_hour;
alter table row_counts rename to row_count_shards;
alter index row_counts_pkey rename to row_count_shards_pkey;

-- The lateral queries are not flattened, so that events are read by their keys whatever the statistics of a queue say.
create view usage_sums as
  select project_id, scope, ref, hour, meter_type, shard, events, tokens, cost_usd, metered, priced, unpriced
  from folded_usage_sums
  union all
  select u.project_id, r.scope, r.ref, date_trunc('hour', e.created_at, 'UTC'), e.meter_type, -1::smallint,
    e.event_count::bigint, e.tokens, coalesce(e.cost_usd, 0), m.used,
    case when e.cost_usd is not null then m.used else 0 end,
    case when usage_unpriced(e.components) then m.used else 0 end
  from unfolded_usage u
    cross join lateral (select * from usage_events e where e.id = u.event_id offset 0) e
    cross join lateral (select case when e.meter_type = 'llm_tokens' and e.source is distinct from 'embedding'
      then e.event_count::bigint else 0 end) m (used)
    cross join lateral (values ('project', ''), ('agent', e.agent_id), ('actor', e.actor_id)) r (scope, ref)
  where r.ref is not null;

create view usage_rollups as
  select project_id, hour, meter_type, model, ai_provider_id, agent_id, source, publisher_project_id, component, unit, shard,
    events, quantity, cost_usd, input_tokens, input_cost, cached_tokens, cached_cost, cache_write_tokens, cache_write_cost,
    output_tokens, output_cost, reasoning_tokens
  from folded_usage_rollups
  union all
  select u.project_id, date_trunc('hour', e.created_at, 'UTC'), e.meter_type, e.model, coalesce(e.ai_provider_id, ''),
    coalesce(e.agent_id, ''), coalesce(e.source, ''), coalesce(e.publisher_project_id, ''), p.component, p.unit, -1::smallint,
    p.events, p.quantity, p.cost_usd, p.input_tokens, p.input_cost, p.cached_tokens, p.cached_cost, p.cache_write_tokens,
    p.cache_write_cost, p.output_tokens, p.output_cost, p.reasoning_tokens
  from unfolded_usage u
    cross join lateral (select * from usage_events e where e.id = u.event_id offset 0) e
    cross join lateral usage_parts(e.components, e.cost_usd, e.event_count) p;

create view row_counts as
  select scope, table_name, shard, count from row_count_shards
  union all
  select project_id, 'usage_events', -1::smallint, count(*) from unfolded_usage group by project_id;

create or replace function count_rows() returns trigger language plpgsql as $$
declare
  sign integer := case tg_op when 'INSERT' then 1 else -1 end;
  own smallint;
  scopes text[];
  numbers bigint[];
begin
  if tg_argv[0] = 'webhook_id' then
    select array_agg(c.scope), array_agg(c.number) into scopes, numbers
    from (select webhook_id as scope, count(*) as number from changed group by 1) c;
  elsif tg_argv[1] = 'driver' then
    select array_agg(c.scope), array_agg(c.number) into scopes, numbers
    from (select project_id as scope, count(*) as number from changed where driver is null group by 1) c;
  else
    select array_agg(c.scope), array_agg(c.number) into scopes, numbers
    from (select coalesce(project_id, '') as scope, count(*) as number from changed group by 1) c;
  end if;
  if scopes is null then
    return null;
  end if;
  own := counter_shard();
  if cardinality(scopes) = 1 then
    update row_count_shards set count = count + sign * numbers[1]
    where scope = scopes[1] and table_name = tg_table_name and shard = own;
    if found then
      return null;
    end if;
  end if;
  insert into row_count_shards as c (scope, table_name, shard, count)
  select u.scope, tg_table_name, own, sign * u.number from unnest(scopes, numbers) as u (scope, number)
  on conflict (scope, table_name, shard) do update set count = c.count + excluded.count;
  return null;
end $$;

create or replace procedure count_table(counted text, variadic arguments text[] default '{project_id}') language plpgsql as $$
declare
  listed text := (select string_agg(quote_literal(a), ', ') from unnest(arguments) a);
begin
  execute format('create trigger row_counts_inserted after insert on %I referencing new table as changed
    for each statement execute function count_rows(%s)', counted, listed);
  execute format('create trigger row_counts_deleted after delete on %I referencing old table as changed
    for each statement execute function count_rows(%s)', counted, listed);
  execute format('create trigger row_counts_kept before update of %I on %I
    for each statement execute function refuse_change(%L)', arguments[1], counted,
    format('rows of %s stay where they were made', counted));
  execute format('insert into row_count_shards select coalesce(%I, %L), %L, 0, count(*) from %I where %s group by 1',
    arguments[1], '', counted, counted, coalesce(quote_ident(arguments[2]) || ' is null', 'true'));
end $$;

create or replace function drop_row_counts() returns trigger language plpgsql as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'deletes of % need read committed: an older snapshot does not see every count', tg_table_name
      using errcode = 'invalid_transaction_state';
  end if;
  delete from row_count_shards where scope = old.id and table_name <> 'audit_entries';
  if tg_table_name = 'projects' then
    delete from unfolded_usage where project_id = old.id;
  end if;
  return null;
end $$;

-- Key of the advisory lock under which the usage of a project is folded. One transaction at a time writes the folded rows
-- of a project, all with the shard -1.
create function usage_fold_lock(project text) returns bigint language sql immutable
return hashtextextended('usage fold ' || project, 0);

-- A roll-up replaces rows that the sums contain already.
create or replace function usage_added() returns trigger language plpgsql as $$
begin
  if current_setting('muster.usage_rollup', true) = 'on' then
    insert into row_count_shards as c (scope, table_name, shard, count)
    select project_id, 'usage_events', counter_shard(), count(*) from changed group by 1
    on conflict (scope, table_name, shard) do update set count = c.count + excluded.count;
  else
    insert into unfolded_usage (project_id, event_id) select project_id, id from changed;
  end if;
  return null;
end $$;
drop trigger row_counts_inserted on usage_events;

-- Adds events to the sums. Requires the lock of usage_fold_lock. With cached plans: planning for each array takes 0.4 ms,
-- execution 0.1.
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
    cached_cost, cache_write_tokens, cache_write_cost, output_tokens, output_cost, reasoning_tokens)
  select e.project_id, date_trunc('hour', e.created_at, 'UTC'), e.meter_type, e.model, coalesce(e.ai_provider_id, ''),
    coalesce(e.agent_id, ''), coalesce(e.source, ''), coalesce(e.publisher_project_id, ''), p.component, p.unit, -1,
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

-- Folds at most a number of events of a project. Returns their number, or null while another transaction folds or deletes
-- the project, for which it does not wait. A row whose event was deleted only counts, as the delete has been counted.
create function fold_usage(project text, most integer) returns integer language plpgsql as $$
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
    delete from unfolded_usage where project_id = project and event_id in (
      select event_id from unfolded_usage where project_id = project order by event_id limit most)
    returning event_id
  ) select count(*), array_agg(r.event) filter (where (r.event).id is not null) into number, events
  from (select (select e from usage_events e where e.id = t.event_id) as event from taken t) r;
  if number > 0 then
    insert into row_count_shards as c (scope, table_name, shard, count) values (project, 'usage_events', -1, number)
    on conflict (scope, table_name, shard) do update set count = c.count + excluded.count;
  end if;
  if events is not null then
    perform add_usage(events);
  end if;
  return number;
end $$;

-- For processes of release 0.1.0, without which nothing folds after a return to it: called for each past hour at night, by
-- a sweep that also deletes old sums.
create or replace function fold_usage(past timestamptz) returns bigint language sql as $$
  select coalesce(sum(fold_usage(u.project_id, 10000)), 0)::bigint
  from (select distinct project_id from unfolded_usage offset 0) u
$$;
create function delete_folded_sum() returns trigger language plpgsql as $$
begin
  delete from folded_usage_sums
  where (project_id, scope, ref, hour, meter_type, shard)
    = (old.project_id, old.scope, old.ref, old.hour, old.meter_type, old.shard);
  return old;
end $$;
create trigger usage_sums_deleted instead of delete on usage_sums for each row execute function delete_folded_sum();
