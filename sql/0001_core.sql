-- breaking: false

-- Conventions: IDs are texts of the application that increase with time. Columns are `json` where values keep the order
-- of their keys, otherwise `jsonb`. Columns named "loose" have no foreign key: the row outlives the one it refers to.
-- Indexes of lists that are mostly appended to have ascending keys and are read backwards: PostgreSQL then splits pages
-- at their end, so that pages stay full and a split writes little.

-- Migrations that are marked as breaking, with the release that has them: processes of earlier releases do not start, and
-- running ones stop.
create table breaking_migrations (
  name text primary key,
  release text not null
);

-- Number of rows per project, and of deliveries per webhook, so that lists show totals without counting: a page of
-- 1,000,000 rows takes 1 ms instead of 300. The counts of a table and scope add up to the result of `count(*)`.
create table row_counts (
  -- A project, for deliveries a webhook; empty for rows without a project.
  scope text not null,
  table_name text not null,
  -- Concurrent transactions count in different shards.
  shard smallint not null,
  -- Negative in a shard with more deletes than inserts.
  count bigint not null,
  primary key (scope, table_name, shard)
) with (fillfactor = 50);

-- Returns a shard that no other transaction writes until this one ends, the same one at each call. Shards are tried in
-- turn instead of waiting for a lock.
create function counter_shard() returns smallint language plpgsql as $$
begin
  for shard in 0..1023 loop
    if pg_try_advisory_xact_lock(1836413812, shard) then
      return shard;
    end if;
  end loop;
  raise exception 'more than 1024 transactions count rows at once' using errcode = 'too_many_connections';
end $$;

-- Counts the rows of a statement. Arguments: the column with the scope, `project_id` or `webhook_id`, and optionally
-- `driver`, which leaves rows with a driver out. One static query per combination: a dynamic one costs 65 µs a statement
-- more. Most statements write rows of one scope that has its row: an update writes less than an insert with a conflict.
create function count_rows() returns trigger language plpgsql as $$
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
    update row_counts set count = count + sign * numbers[1]
    where scope = scopes[1] and table_name = tg_table_name and shard = own;
    if found then
      return null;
    end if;
  end if;
  insert into row_counts as c (scope, table_name, shard, count)
  select u.scope, tg_table_name, own, sign * u.number from unnest(scopes, numbers) as u (scope, number)
  on conflict (scope, table_name, shard) do update set count = c.count + excluded.count;
  return null;
end $$;

-- Refuses a statement with the message of the first argument. The second one is the statement that retention of the
-- audit log may execute.
create function refuse_change() returns trigger language plpgsql as $$
begin
  if tg_op = tg_argv[1] and current_setting('muster.audit_retention', true) = 'on' then
    return case tg_op when 'DELETE' then old else new end;
  end if;
  raise exception '%', tg_argv[0];
end $$;

-- Counts the rows of a table and maintains the counts: `call count_table('<table>', '<arguments of count_rows>')`. Creating
-- the triggers waits for all writers of the table. Rows keep their scope.
create procedure count_table(counted text, variadic arguments text[] default '{project_id}') language plpgsql as $$
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
  execute format('insert into row_counts select coalesce(%I, %L), %L, 0, count(*) from %I where %s group by 1',
    arguments[1], '', counted, counted, coalesce(quote_ident(arguments[2]) || ' is null', 'true'));
end $$;

-- Deletes the counts of a deleted project or webhook, at the commit: cascades count their rows after the delete. Other
-- transactions that count there hold a row that the cascade waited for. Audit entries outlive their project.
create function drop_row_counts() returns trigger language plpgsql as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'deletes of % need read committed: an older snapshot does not see every count', tg_table_name
      using errcode = 'invalid_transaction_state';
  end if;
  delete from row_counts where scope = old.id and table_name <> 'audit_entries';
  return null;
end $$;

create table worker_heartbeats (
  instance_id text primary key,
  kinds text[] not null, started_at timestamptz(3) not null, beat_at timestamptz(3) not null,
  -- The process, as in leases: other processes end the leases of a lost one.
  holder text, host text, pid integer, pid_started text,
  version text,
  -- By name, the slots of the handlers and how many of them one project may hold.
  queues jsonb,
  -- By how many milliseconds its clock was ahead of the database.
  clock_ahead_ms double precision
);

-- Readiness updates it to check that the database accepts writes. Processes share the row, so that they rarely write.
create table write_probe (
  id boolean primary key default true check (id),
  written_at timestamptz(3) not null default '-infinity'
);
insert into write_probe default values;
