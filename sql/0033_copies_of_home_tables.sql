-- breaking: false

-- Rows that belong to the deployment are written in its first cell and copied to the others: by triggers to a cell in the same
-- database, by logical replication to one in another.

-- The project of a grant may be in another database.
alter table oauth_grants drop constraint oauth_grants_project_id_fkey;
create function delete_grants_of_project() returns trigger language plpgsql as $$
begin
  delete from oauth_grants where project_id = old.id;
  return null;
end $$;
create trigger projects_grants after delete on projects for each row execute function delete_grants_of_project();

-- Publications filter these by their project, so that changes must contain it.
alter table project_keys replica identity full;
alter table prices replica identity full;

-- Invalidates what the processes of a cell have cached of a copied row.
create function notify_copy(schema name, table_name name, copied jsonb) returns void language sql as $$
  select case table_name
    when 'prices' then pg_notify(cell_channel(schema, 'muster_usage'), '')
    else pg_notify(cell_channel(schema, 'muster_principals'), case table_name
      when 'users' then 'user:' || (copied ->> 'id')
      when 'user_policies' then 'user:' || (copied ->> 'user_id')
      when 'policies' then 'policy:' || (copied ->> 'id')
      when 'project_keys' then 'key:' || (copied ->> 'id')
      when 'project_key_policies' then 'key:' || (copied ->> 'key_id')
      when 'oauth_grants' then 'grant:' || (copied ->> 'id')
    end)
  end
$$;

-- Writes a changed row to the same table of another schema, in the columns that both have. Arguments: the schema, and `unbound` if
-- only rows without a project are copied. The keys of a project have their policies in its cell.
create function copy_row() returns trigger language plpgsql as $$
declare
  path text := current_setting('search_path');
  target text := format('%I.%I', tg_argv[0], tg_table_name);
  is_filtered boolean := tg_argv[1] is not null;
  keys text;
  key_values text;
  names text;
  new_values text;
  assigned text;
begin
  if tg_op = 'UPDATE' and to_jsonb(new) = to_jsonb(old) then
    return null;
  end if;
  perform set_config('search_path', tg_argv[0], true);
  select string_agg(quote_ident(attname), ', '), string_agg('($1).' || quote_ident(attname), ', ') into keys, key_values
  from pg_index join pg_attribute on attrelid = indrelid and attnum = any (indkey)
  where indrelid = target::regclass and indisprimary;
  if tg_op = 'DELETE' or (is_filtered and tg_op = 'UPDATE' and to_jsonb(new) ->> 'project_id' is not null) then
    if not is_filtered or to_jsonb(old) ->> 'project_id' is null then
      execute format('delete from %s where (%s) = (%s)', target, keys, key_values) using old;
      perform notify_copy(tg_argv[0]::name, tg_table_name, to_jsonb(old));
    end if;
  elsif not is_filtered or to_jsonb(new) ->> 'project_id' is null then
    select string_agg(quote_ident(c.attname), ', '), string_agg('($1).' || quote_ident(c.attname), ', '),
      string_agg(format('%1$I = excluded.%1$I', c.attname), ', ')
    into names, new_values, assigned
    from pg_attribute c join pg_attribute h on h.attrelid = tg_relid and h.attname = c.attname
    where c.attrelid = target::regclass and c.attnum > 0 and not c.attisdropped and not h.attisdropped;
    execute format('insert into %s (%s) select %s where %s on conflict (%s) do update set %s', target, names, new_values,
      case when tg_table_name = 'project_key_policies'
        then 'exists (select from project_keys where id = ($1).key_id)' else 'true' end, keys, assigned) using new;
    if tg_table_name = 'project_keys' and tg_op = 'UPDATE' and to_jsonb(old) ->> 'project_id' is not null then
      execute format('insert into project_key_policies (key_id, policy_id, position)
        select key_id, policy_id, position from %I.project_key_policies where key_id = ($1).id
        on conflict (key_id, policy_id) do update set position = excluded.position', tg_table_schema) using new;
    end if;
    perform notify_copy(tg_argv[0]::name, tg_table_name, to_jsonb(new));
  end if;
  perform set_config('search_path', path, true);
  return null;
end $$;

-- Applies the rules of foreign keys to a replicated change, for which PostgreSQL does not check them: rows of the cell are deleted
-- with the row that they reference. A referenced policy remains, as a reference may be written while its delete is on the way.
create function receive_copy() returns trigger language plpgsql as $$
declare
  reference record;
  is_referenced boolean;
begin
  perform set_config('search_path', tg_table_schema, true);
  if tg_op <> 'DELETE' then
    perform notify_copy(tg_table_schema, tg_table_name, to_jsonb(new));
    return new;
  end if;
  for reference in
    select conrelid::regclass as table_name, attname as column_name, confdeltype as rule
    from pg_constraint join pg_attribute on attrelid = conrelid and attnum = conkey[1]
    where contype = 'f' and confrelid = tg_relid
    order by confdeltype in ('a', 'r') desc
  loop
    if reference.rule = 'c' then
      execute format('delete from %s where %I = $1', reference.table_name, reference.column_name) using old.id;
    elsif reference.rule = 'n' then
      -- The trigger of the time of an assignment does not run either.
      execute format('update %s set %I = null%s where %I = $1', reference.table_name, reference.column_name,
        case when reference.table_name = 'sessions'::regclass then ', assigned_at = null' else '' end,
        reference.column_name) using old.id;
    else
      execute format('select exists (select from %s where %I = $1)', reference.table_name, reference.column_name)
        into is_referenced using old.id;
      if is_referenced then
        return null;
      end if;
    end if;
  end loop;
  perform notify_copy(tg_table_schema, tg_table_name, to_jsonb(old));
  return old;
end $$;

create trigger copies_received before insert or update or delete on users for each row execute function receive_copy();
create trigger copies_received before insert or update or delete on policies for each row execute function receive_copy();
create trigger copies_received before insert or update or delete on user_policies for each row execute function receive_copy();
create trigger copies_received before insert or update or delete on project_keys for each row execute function receive_copy();
create trigger copies_received before insert or update or delete on project_key_policies
  for each row execute function receive_copy();
create trigger copies_received before insert or update or delete on oauth_grants for each row execute function receive_copy();
create trigger copies_received before insert or update or delete on prices for each row execute function receive_copy();
alter table users enable replica trigger copies_received;
alter table policies enable replica trigger copies_received;
alter table user_policies enable replica trigger copies_received;
alter table project_keys enable replica trigger copies_received;
alter table project_key_policies enable replica trigger copies_received;
alter table oauth_grants enable replica trigger copies_received;
alter table prices enable replica trigger copies_received;
