-- breaking: false

-- Databases of the deployment besides the one with this table. The number is part of the IDs that a cell makes, so it is never
-- given twice.
create table cells (
  name text primary key check (name ~ '^[a-z][a-z0-9-]{0,29}$' and name <> 'home'),
  number int not null unique check (number between 1 and 1023),
  url text not null,
  state text not null default 'open' check (state in ('open', 'closed', 'moving', 'down')),
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);

-- Projects that are in another cell than their ID says.
create table project_cells (
  project_id text primary key,
  cell text references cells (name)
);
create index project_cells_cell on project_cells (cell);

create function cells_changed() returns trigger language plpgsql as $$
begin
  perform pg_notify(cell_channel(tg_table_schema, 'muster_cells'), '');
  return null;
end $$;
create trigger cells_changed after insert or update or delete on cells
  for each statement execute function cells_changed();
create trigger project_cells_changed after insert or update or delete on project_cells
  for each statement execute function cells_changed();
