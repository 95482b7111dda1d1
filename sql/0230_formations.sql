-- Formations: resources that one template declares, created, changed and deleted together.

create table formations (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  status text not null check (status in ('creating', 'active', 'updating', 'failed', 'deleting', 'deleted', 'delete_failed')),
  -- As authored; json keeps the order of keys. Write-only values are placeholders here.
  template json not null,
  -- Their values as authored, sealed: { <logical id>: { <property>: value } }.
  sealed_values text,
  outputs json,
  -- Outputs whose values are kept nowhere and read when they are shown: { <output>: { resource, attribute } }
  read_outputs json,
  metadata json,
  resolved_metadata json,
  resolved_parameters json,
  error jsonb,
  termination_protection boolean not null default false,
  -- The newest operation, which is the one that runs while one runs.
  operation_id text not null,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index formations_project on formations (project_id, created_at desc, id desc);
create unique index formations_name on formations (project_id, name) where status <> 'deleted';
create index formations_gone on formations (updated_at) where status = 'deleted';

create table formation_resources (
  id text primary key,
  formation_id text not null references formations (id) on delete cascade,
  logical_id text not null,
  resource_type text not null,
  -- Null until it is created, and again once it is deleted.
  physical_resource_id text,
  status text not null check (status in ('pending', 'created', 'updated', 'deleted', 'failed')),
  -- Place in the order of the last template that declared it; what is deleted goes backwards.
  position integer not null,
  retain boolean not null default false,
  prevent_destroy boolean not null default false,
  -- The properties as they were applied, without write-only values.
  applied json not null default '{}',
  -- What the resource showed for them afterwards, where that was something else.
  shown json not null default '{}',
  -- Keyed hashes of write-only values: { <property>: hash }.
  hashes jsonb not null default '{}',
  -- Attributes that the handler of a registered type gave.
  attributes jsonb,
  -- Resources that were replaced and are still to be deleted: [{ physical_resource_id, retain }].
  replaced jsonb not null default '[]',
  -- Creates that were refused: the next one is another call, and no repeat of a refused one.
  refusals integer not null default 0,
  applied_at timestamptz(3)
) with (fillfactor = 85);
create index formation_resources_formation on formation_resources (formation_id, position, id);
create unique index formation_resources_tracked on formation_resources (formation_id, logical_id, resource_type)
  where status <> 'deleted';
create index formation_resources_physical on formation_resources (physical_resource_id, resource_type)
  where physical_resource_id is not null;

create table formation_operations (
  id text primary key,
  formation_id text not null references formations (id) on delete cascade,
  operation_type text not null check (operation_type in ('create', 'update', 'delete')),
  status text not null check (status in ('pending', 'running', 'succeeded', 'failed')),
  plan json,
  error jsonb,
  -- The parameters while it runs, sealed, and what of the template they leave out.
  sealed_parameters text,
  -- Values that the answer of the request alone may show, sealed until it has.
  sealed_answer text,
  force_conflicts boolean not null default true,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
) with (fillfactor = 85);
create index formation_operations_formation on formation_operations (formation_id, created_at, id);

-- What an operation did, in order.
create table formation_events (
  operation_id text not null references formation_operations (id) on delete cascade,
  seq integer not null,
  created_at timestamptz(3) not null default now(),
  logical_id text not null,
  resource_type text not null,
  action text not null,
  status text not null check (status in ('succeeded', 'failed')),
  physical_resource_id text,
  error jsonb,
  primary key (operation_id, seq)
);

-- Operations that wait for a worker, and those that run.
create table formation_attempts (
  formation_id text primary key references formations (id) on delete cascade,
  id text not null unique references formation_operations (id) on delete cascade,
  state text not null default 'queued' check (state in ('queued', 'running')),
  due_at timestamptz(3) not null default now(),
  claims integer not null default 0,
  losses integer not null default 0,
  failures integer not null default 0,
  holder text,
  -- Whose rights it has: { type, id, via }, and the kind of the credential it was asked for with.
  principal jsonb not null,
  credential jsonb not null,
  heartbeat_at timestamptz(3)
);
create index formation_attempts_due on formation_attempts (due_at);

-- Outputs of other formations that the template in force takes values from.
create table formation_imports (
  formation_id text not null references formations (id) on delete cascade,
  source_id text not null references formations (id) on delete cascade,
  output text not null,
  primary key (formation_id, source_id, output)
);
create index formation_imports_source on formation_imports (source_id, output);

-- Plans that were saved to be applied as they are.
create table formation_plans (
  id text primary key,
  formation_id text not null references formations (id) on delete cascade,
  template json not null,
  sealed_values text,
  sealed_parameters text,
  -- Of the state that it was made of.
  digest text not null,
  expires_at timestamptz(3) not null,
  created_at timestamptz(3) not null default now()
);
create index formation_plans_formation on formation_plans (formation_id);
create index formation_plans_expiring on formation_plans (expires_at);
