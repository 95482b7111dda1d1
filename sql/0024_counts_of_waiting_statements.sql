-- breaking: false

-- Statements of a process of release 0.1.0 that wait for the migrations count in the view with the name of their table.
create function count_in_shard() returns trigger language plpgsql as $$
begin
  update row_count_shards set count = count + new.count - old.count
  where scope = old.scope and table_name = old.table_name and shard = old.shard;
  return new;
end $$;
create trigger row_counts_changed instead of update on row_counts for each row execute function count_in_shard();
