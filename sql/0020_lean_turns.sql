-- What a turn writes besides its rows, made small.

-- Lists that begin with the newest row read these backwards. Where keys rise PostgreSQL splits a page at its end: pages
-- stay full and a split writes little. Where they fall it copies half a page.
drop index events_project;
create index events_project on events (project_id, created_at, id);
-- Ids rise with time: over all projects they are the order.
drop index events_created;
drop index audit_entries_project;
create index audit_entries_project on audit_entries (project_id, created_at, id);
drop index audit_entries_created;
create index audit_entries_created on audit_entries (created_at, id);
drop index webhook_deliveries_webhook;
create index webhook_deliveries_webhook on webhook_deliveries (webhook_id, created_at, id);
drop index traces_project;
create index traces_project on traces (project_id, created_at, id);
drop index generations_project;
create index generations_project on generations (project_id, created_at, id);
drop index generations_agent;
create index generations_agent on generations (agent_id, created_at, id);
drop index generations_session;
create index generations_session on generations (session_id, created_at) where session_id is not null;
drop index generations_conversation;
create index generations_conversation on generations (conversation_id, created_at) where conversation_id is not null;
drop index generations_actor;
create index generations_actor on generations (actor_id, created_at) where actor_id is not null;

-- The row of a turn is written three times, and no index reads what changes: the room left in a page lets the later two
-- stay in it, so that eight indexes are written once. What is not at its end is what has working state.
drop index generations_open;
alter table generations set (fillfactor = 80);
alter table generation_work alter column sealed drop not null;
comment on table generation_work is 'A row for each turn that is not at its end; in content mode none its working state is in generation_work_unlogged';
insert into generation_work (generation_id) select id from generations where completed_at is null on conflict do nothing;

-- An update that finds its row writes less than an insert that finds a conflict.
create function add_to_count(counted_scope text, counted_table text, own_shard integer, more bigint) returns void
language plpgsql as $$
begin
  update row_counts set count = count + more
  where scope = counted_scope and table_name = counted_table and shard = own_shard;
  if not found then
    insert into row_counts as c (scope, table_name, shard, count) values (counted_scope, counted_table, own_shard, more)
    on conflict (scope, table_name, shard) do update set count = c.count + excluded.count;
  end if;
end $$;

create or replace function count_rows() returns trigger language plpgsql as $$
declare
  change integer := case tg_op when 'INSERT' then 1 else -1 end;
begin
  for free in 0..1023 loop
    continue when not pg_try_advisory_xact_lock(1836413812, free);
    if tg_table_name = 'webhook_deliveries' then
      perform add_to_count(c.scope, tg_table_name, free, change * c.rows)
      from (select webhook_id as scope, count(*) as rows from changed group by 1) c;
    else
      perform add_to_count(coalesce(c.scope, ''), tg_table_name, free, change * c.rows)
      from (select project_id as scope, count(*) as rows from changed group by 1) c;
    end if;
    return null;
  end loop;
  raise exception 'more than 1024 transactions count rows at once' using errcode = 'too_many_connections';
end $$;

-- An event of a project that has no webhook is kept compressed (core/db/envelopes.ts); one with deliveries keeps the text
-- that is signed.
alter table events alter column envelope drop not null;
alter table events add column packed bytea;
alter table events add constraint events_envelope check ((envelope is null) <> (packed is null));
