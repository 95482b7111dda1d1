-- What a statement writes is nearly always of one project, and its row of the counts is there: an update writes less than an
-- insert that finds a conflict, which locks the row first.
create or replace function count_rows() returns trigger language plpgsql as $$
declare
  change integer := case tg_op when 'INSERT' then 1 else -1 end;
  first text;
  last text;
  more bigint;
begin
  if tg_table_name = 'webhook_deliveries' then
    select min(webhook_id), max(webhook_id), count(*) into first, last, more from changed;
  elsif tg_table_name = 'orchestration_runs' then
    select min(project_id), max(project_id), count(*) into first, last, more from changed where driver is null;
  else
    select min(coalesce(project_id, '')), max(coalesce(project_id, '')), count(*) into first, last, more from changed;
  end if;
  if more = 0 then
    return null;
  end if;
  for free in 0..1023 loop
    continue when not pg_try_advisory_xact_lock(1836413812, free);
    if first = last then
      update row_counts set count = count + change * more where scope = first and table_name = tg_table_name and shard = free;
      if found then
        return null;
      end if;
    end if;
    if tg_table_name = 'webhook_deliveries' then
      insert into row_counts as c (scope, table_name, shard, count)
      select webhook_id, tg_table_name, free, change * count(*) from changed group by webhook_id
      on conflict (scope, table_name, shard) do update set count = c.count + excluded.count;
    elsif tg_table_name = 'orchestration_runs' then
      insert into row_counts as c (scope, table_name, shard, count)
      select project_id, tg_table_name, free, change * count(*) from changed where driver is null group by project_id
      on conflict (scope, table_name, shard) do update set count = c.count + excluded.count;
    else
      insert into row_counts as c (scope, table_name, shard, count)
      select coalesce(project_id, ''), tg_table_name, free, change * count(*) from changed group by project_id
      on conflict (scope, table_name, shard) do update set count = c.count + excluded.count;
    end if;
    return null;
  end loop;
  raise exception 'more than 1024 transactions count rows at once' using errcode = 'too_many_connections';
end $$;
-- Nothing calls it.
drop function add_to_count;
