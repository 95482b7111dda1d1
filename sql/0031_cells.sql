-- breaking: false

-- The schemas of a database share its channels: if the schema has the queues too, as in a URL with a schema, its name precedes
-- them.
create function cell_channel(schema name, channel text) returns text language sql stable
  return case when to_regclass(quote_ident(schema) || '.job_common') is null then channel else schema || '.' || channel end;

create or replace function audit_reads_changed() returns trigger language plpgsql as $$
begin
  perform pg_notify(cell_channel(tg_table_schema, 'muster_audit_reads'), new.id);
  return null;
end $$;

create or replace function add_approval_frame() returns trigger language plpgsql as $$
begin
  insert into session_frames (session_id, event, approval_id) values (new.session_id, 'approval', new.id);
  if found then
    perform pg_notify(cell_channel(tg_table_schema, 'muster_sessions'), new.session_id);
  end if;
  return null;
end $$;

-- Published tables need an identity of rows; these have no key. It costs nothing unless wal_level is logical.
alter table session_keys replica identity full;
alter table turn_requests replica identity full;
