-- breaking: false

-- A project that is on the way to another cell takes no requests. IDs keep the number of the cell that made them, so the numbers are
-- of all cells in which the project has been.
alter table project_cells
  add column moving_to text,
  add column numbers int[] not null default '{}';

-- A project whose rows have left its cell, in the database of the cell that gets it: its source, the number and a hash of the rows of
-- each table, and the embedding spaces of the source that its vectors are in.
create table moving_projects (
  project_id text primary key,
  source text not null,
  tables jsonb not null,
  spaces jsonb not null,
  created_at timestamptz not null default now()
);

-- Its rows, as text.
create table moving_rows (
  project_id text not null,
  table_name text not null,
  position bigint generated always as identity,
  line text not null,
  primary key (project_id, table_name, position)
);
