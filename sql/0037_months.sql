-- breaking: false

-- Tables that are partitioned by months of their IDs, which rise with time: a row is found by its ID in one partition, and a
-- month is dropped as a whole. NAME_YYYY_MM has a month, NAME_before what the table had when it was partitioned, and NAME_rest
-- rows for whose month no partition has been made. core/db/months.ts makes and drops months.

-- The least ID of a time, as idFloor in core/base/ids.ts.
create function id_floor(prefix text, at timestamptz) returns text language sql immutable
return concat(prefix, '_', (
  select string_agg(substr('0123456789abcdefghjkmnpqrstvwxyz',
    ((floor(extract(epoch from at) * 1000)::bigint >> (5 * (9 - n))) & 31)::integer + 1, 1), '' order by n)
  from generate_series(0, 9) n), repeat('0', 16));

-- Adds the triggers against TRUNCATE, which a partition does not inherit.
create function add_truncate_triggers(parent text, added text) returns void language plpgsql as $$
declare
  definition text;
begin
  for definition in
    select pg_get_triggerdef(oid) from pg_trigger where tgrelid = parent::regclass and (tgtype & 32) <> 0
  loop
    execute regexp_replace(definition, ' ON \S+ ', format(' ON %I ', added));
  end loop;
end $$;

-- Makes the partition of a month, with the rows of the month in NAME_rest. False if a partition has its IDs already, or if
-- NAME_rest has too many of them to move while other work waits: they remain there.
create function add_month(parent text, prefix text, month timestamptz) returns boolean language plpgsql as $$
declare
  added text := parent || to_char(month at time zone 'UTC', '_YYYY_MM');
  rest text := parent || '_rest';
  first text := id_floor(prefix, month);
  next text := id_floor(prefix, (month at time zone 'UTC' + interval '1 month') at time zone 'UTC');
  found bigint;
begin
  if exists (
    select from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = parent::regclass
      and substring(pg_get_expr(c.relpartbound, c.oid) from ' TO \(''([^'']+)''\)') > first
  ) then
    return false;
  end if;
  execute format('select count(*) from (select from %I where id >= %L and id < %L limit 10001) r', rest, first, next) into found;
  if found > 10000 then
    return false;
  end if;
  execute format('create table %I (like %I including defaults including constraints including generated including storage
    including compression)', added, parent);
  execute format('lock table %I in access exclusive mode', rest);
  -- The triggers of audit entries allow deletes under this setting.
  perform set_config('muster.audit_retention', 'on', true);
  execute format('with moved as (delete from %I where id >= %L and id < %L returning *) insert into %I select * from moved',
    rest, first, next, added);
  perform set_config('muster.audit_retention', '', true);
  execute format('alter table %I attach partition %I for values from (%L) to (%L)', parent, added, first, next);
  perform add_truncate_triggers(parent, added);
  return true;
end $$;

-- Locks a table against all other work, and the tables it references before it: work that has locked one of them may write this
-- table next. The first lock blocks no reader or writer; a wait for it ends an automatic vacuum, which the short waits would not.
create function lock_alone(name text) returns void language plpgsql as $$
declare
  referenced text;
begin
  perform set_config('lock_timeout', '5s', true);
  execute format('lock table %I in share update exclusive mode', name);
  perform set_config('lock_timeout', '500ms', true);
  for referenced in select confrelid::regclass from pg_constraint where conrelid = name::regclass and contype = 'f' loop
    execute format('lock table %s in access exclusive mode', referenced);
  end loop;
  execute format('lock table %I in access exclusive mode', name);
end $$;

-- Partitions a table online: its rows stay where they are, as the partition NAME_before. A long table is read once, under a
-- lock that lets other work read and write; other locks are short. May be repeated.
create procedure partition_by_month(parent text, prefix text) language plpgsql as $$
declare
  before text := parent || '_before';
  bounded text := parent || '_bound';
  month timestamptz := date_trunc('month', now(), 'UTC');
  is_empty boolean;
  bound text;
  definitions text[];
  definition text;
  item record;
begin
  if (select relkind from pg_class where oid = parent::regclass) = 'p' then
    return;
  end if;

  select substring(pg_get_constraintdef(oid) from '''([^'']+)''') into bound
  from pg_constraint where conrelid = parent::regclass and conname = bounded;
  -- The bound of an earlier run, which was interrupted, may be near.
  if bound is null or bound < id_floor(prefix, now() + interval '34 days') then
    perform lock_alone(parent);
    execute format('alter table %I drop constraint if exists %I', parent, bounded);
    execute format('select not exists (select from %I)', parent) into is_empty;
    -- The bound must not be reached before the table is partitioned: by this transaction if it is empty.
    if not is_empty then
      month := date_trunc('month', now() + interval '65 days', 'UTC');
    end if;
    execute format('alter table %I add constraint %I check (id < %L) not valid', parent, bounded, id_floor(prefix, month));
  end if;
  if is_empty is distinct from true then
    commit;
    execute format('alter table %I validate constraint %I', parent, bounded);
    commit;
    perform lock_alone(parent);
  end if;

  select substring(pg_get_constraintdef(oid) from '''([^'']+)''') into bound
  from pg_constraint where conrelid = parent::regclass and conname = bounded;
  definitions := array(
    select pg_get_indexdef(indexrelid) from pg_index where indrelid = parent::regclass and not indisprimary
    union all
    select format('alter table %I add constraint %I %s', parent, conname, pg_get_constraintdef(oid))
    from pg_constraint where conrelid = parent::regclass and contype = 'f'
    union all
    select pg_get_triggerdef(oid) from pg_trigger where tgrelid = parent::regclass and not tgisinternal);
  for item in
    select tgname as name from pg_trigger
    where tgrelid = parent::regclass and not tgisinternal and (tgtype & 32) = 0
  loop
    execute format('drop trigger %I on %I', item.name, parent);
  end loop;
  for item in
    select relname as name from pg_index join pg_class on oid = indexrelid where indrelid = parent::regclass
  loop
    execute format('alter index %I rename to %I', item.name, replace(item.name, parent, before));
  end loop;
  execute format('alter table %I rename to %I', parent, before);
  execute format('create table %I (like %I including defaults including constraints including generated including storage
    including compression) partition by range (id)', parent, before);
  execute format('alter table %I drop constraint %I', parent, bounded);
  execute format('alter table %I add primary key (id)', parent);
  foreach definition in array definitions loop
    execute definition;
  end loop;
  execute format('alter table %I attach partition %I for values from (minvalue) to (%L)', parent, before, bound);
  execute format('alter table %I drop constraint %I', before, bounded);
  execute format('create table %I partition of %I default', parent || '_rest', parent);
  perform add_truncate_triggers(parent, parent || '_rest');
  for n in 0..3 loop
    -- Without the time zone of the session.
    perform add_month(parent, prefix,
      (date_trunc('month', now() at time zone 'UTC') + make_interval(months => n)) at time zone 'UTC');
  end loop;
end $$;
