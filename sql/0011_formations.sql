-- breaking: false

-- Formations: resources that one template declares, created, changed and deleted together.

create table formations (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  status text not null check (status in ('creating', 'active', 'updating', 'failed', 'deleting', 'deleted', 'delete_failed')),
  -- As authored, with placeholders for write-only values.
  template json not null,
  -- The write-only values as authored: { <logical id>: { <property>: value } }.
  sealed_values text,
  outputs json,
  -- Outputs whose values are never stored, and are read when they are presented: { <output>: { resource, attribute } }
  read_outputs json,
  metadata json, resolved_metadata json, resolved_parameters json, error jsonb,
  termination_protection boolean not null default false,
  -- The newest operation; earlier ones have settled.
  operation_id text not null,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);
create index formations_project on formations (project_id, created_at desc, id desc);
create unique index formations_name on formations (project_id, name) where status <> 'deleted';
create index formations_gone on formations (updated_at) where status = 'deleted';

create table formation_resources (
  id text primary key,
  formation_id text not null references formations (id) on delete cascade,
  logical_id text not null, resource_type text not null,
  -- Null before the creation and after the deletion.
  physical_resource_id text,
  status text not null check (status in ('pending', 'created', 'updated', 'deleted', 'failed')),
  -- Order in the last template that declared it; deletions are in reverse order.
  position integer not null,
  retain boolean not null default false, prevent_destroy boolean not null default false,
  -- Applied properties, without write-only values.
  applied json not null default '{}',
  -- Values of these properties in the resource afterwards, if they differ.
  shown json not null default '{}',
  -- Keyed hashes of write-only values: { <property>: hash }.
  hashes jsonb not null default '{}',
  -- Attributes returned by the handler of a registered type.
  attributes jsonb,
  -- Replaced resources that are not deleted yet: [{ physical_resource_id, retain }].
  replaced jsonb not null default '[]',
  -- Refused creates: the next one is a new call, not a repeat.
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
  plan json, error jsonb,
  -- Until the end: parameters, and the parts of the template that they omit.
  sealed_parameters text,
  -- Values that only the response of the request may contain, until it does.
  sealed_answer text,
  force_conflicts boolean not null default true,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
) with (fillfactor = 85);
create index formation_operations_formation on formation_operations (formation_id, created_at, id);

-- Steps of an operation, in order.
create table formation_events (
  operation_id text not null references formation_operations (id) on delete cascade,
  seq integer not null,
  created_at timestamptz(3) not null default now(),
  logical_id text not null, resource_type text not null, action text not null,
  status text not null check (status in ('succeeded', 'failed')),
  physical_resource_id text, error jsonb,
  primary key (operation_id, seq)
);

-- Work items: unsettled operations.
create table formation_attempts (
  formation_id text primary key references formations (id) on delete cascade,
  id text not null unique references formation_operations (id) on delete cascade,
  state text not null default 'queued' check (state in ('queued', 'running')),
  due_at timestamptz(3) not null default now(),
  claims integer not null default 0, losses integer not null default 0, failures integer not null default 0,
  -- Principal whose permissions apply: { type, id, via }, and the kind of the credential of the request.
  principal jsonb not null,
  credential jsonb not null
);
create index formation_attempts_due on formation_attempts (due_at);

-- Outputs of other formations that the current template uses.
create table formation_imports (
  formation_id text not null references formations (id) on delete cascade,
  source_id text not null references formations (id) on delete cascade,
  output text not null,
  primary key (formation_id, source_id, output)
);
create index formation_imports_source on formation_imports (source_id, output);

-- Plans that were stored to be applied unchanged.
create table formation_plans (
  id text primary key,
  formation_id text not null references formations (id) on delete cascade,
  template json not null, sealed_values text, sealed_parameters text,
  -- Of the state from which the plan was computed.
  digest text not null,
  expires_at timestamptz(3) not null,
  created_at timestamptz(3) not null default now()
);
create index formation_plans_formation on formation_plans (formation_id);
create index formation_plans_expiring on formation_plans (expires_at);
