-- The row of a trace is written again when its turn ends, and when its steps get their file. No index reads what changes then, and a page
-- keeps room for it: five indexes are written once.
alter table traces drop constraint traces_file_id_fkey;
drop index traces_file;
alter table traces set (fillfactor = 45);

-- What the foreign key held: the path of the file names its trace.
create function refuse_file_of_trace() returns trigger language plpgsql as $$
begin
  -- Paths have the collation C, the primary key does not.
  if exists (
    select from traces where id = split_part(split_part(old.path, '/', 4), '.', 1) collate "default" and file_id = old.id
  ) then
    raise exception 'file % is the one of a trace', old.id using errcode = 'foreign_key_violation';
  end if;
  return null;
end $$;
create trigger files_of_traces after delete on files for each row when (starts_with(old.path, '/.system/traces/'))
execute function refuse_file_of_trace();
