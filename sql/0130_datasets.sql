-- Datasets: examples that agents are measured by.

create table datasets (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  description text,
  -- How many items it has: writers of items hold this row.
  item_count integer not null default 0,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index datasets_project on datasets (project_id, created_at desc, id desc);
create unique index datasets_name on datasets (project_id, name);

create table dataset_items (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  dataset_id text not null references datasets (id) on delete cascade,
  -- json, not jsonb, both: what a caller wrote comes back with its keys in their order.
  input json not null,
  expected_output text,
  metadata json,
  -- What the three take as JSON: the footprint of a project adds it up.
  bytes bigint not null,
  source_generation_id text references generations (id) on delete set null,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
-- Their order is that of their ids: rows of one import have one time.
create index dataset_items_dataset on dataset_items (dataset_id, created_at, id);
create index dataset_items_project on dataset_items (project_id) include (bytes);
create index dataset_items_source on dataset_items (source_generation_id) where source_generation_id is not null;
