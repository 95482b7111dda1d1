-- The steps of settled turns are in a file of their trace; the journal has those that are not written there yet.
alter table traces add column file_id text references files (id);
-- What keeps a file.
create index traces_file on traces (file_id) where file_id is not null;
