-- breaking: false

-- Filters of a list that a user has saved by a name.
create table saved_views (
  id text primary key,
  user_id text not null references users (id) on delete cascade,
  project_id text not null references projects (id) on delete cascade,
  view text not null, name text not null,
  -- Parameters of the address of the view, texts by name.
  query jsonb not null,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);
create unique index saved_views_name on saved_views (user_id, project_id, view, name);
create index saved_views_project on saved_views (project_id);
