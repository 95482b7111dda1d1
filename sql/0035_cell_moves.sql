-- breaking: false

-- Moves of cells to other databases that have begun, so that the command can be repeated or cancelled.
create table cell_moves (
  cell text primary key references cells (name),
  url text not null,
  state text not null check (state in ('open', 'closed')),
  -- Schemas of tables and queues at the source, and the suffix of their names once it refuses writes.
  tables_schema text not null,
  queues_schema text not null,
  fence text not null,
  -- Schema of each table in the target, and the schemas that the move creates there.
  layout jsonb not null,
  created_at timestamptz not null default now()
);
