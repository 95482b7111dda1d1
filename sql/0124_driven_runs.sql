-- Runs that a module of its own drives, such as those behind playbooks: beside the lists of runs, and readable by id.

alter table orchestration_runs
  -- Name of the module.
  add column driver text;

alter table orchestration_node_executions
  -- The decision that the attempt waits for or came to.
  add column decision_id text;
create index orchestration_node_executions_decision on orchestration_node_executions (decision_id)
  where decision_id is not null;

-- They are not counted with those that are listed.
create or replace function count_rows() returns trigger language plpgsql as $$
declare
  change integer := case tg_op when 'INSERT' then 1 else -1 end;
begin
  for free in 0..1023 loop
    continue when not pg_try_advisory_xact_lock(1836413812, free);
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
