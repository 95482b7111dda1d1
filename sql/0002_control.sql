-- What every change leaves behind: events, audit entries, kept answers; and the signs of life of workers.

create table events (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  resource_type text not null,
  resource_id text not null,
  -- Text, not jsonb: the bytes that are signed and sent never change.
  envelope text not null,
  custom boolean not null default false,
  causation jsonb,
  dispatched_at timestamptz(3),
  created_at timestamptz(3) not null
);
create index events_project on events (project_id, created_at desc, id desc);
create index events_created on events (created_at);
create index events_resource on events (resource_id);

-- No foreign key: entries outlive the project they name.
create table audit_entries (
  id text primary key,
  project_id text,
  principal_type text check (principal_type in ('user', 'api_key')),
  principal_id text,
  action text not null,
  resource_srn text,
  resource_public_id text,
  status integer not null,
  request_id text,
  ip text,
  user_agent text,
  detail jsonb,
  created_at timestamptz(3) not null
);
create index audit_entries_project on audit_entries (project_id, created_at desc, id desc);
create index audit_entries_created on audit_entries (created_at desc, id desc);

create function audit_entries_append_only() returns trigger language plpgsql as $$
begin
  if tg_op = 'DELETE' and current_setting('muster.audit_retention', true) = 'on' then
    return old;
  end if;
  raise exception 'audit entries are append-only';
end $$;
create trigger audit_entries_append_only before update or delete on audit_entries
  for each row execute function audit_entries_append_only();
create trigger audit_entries_no_truncate before truncate on audit_entries
  for each statement execute function audit_entries_append_only();

-- The hash chain of a project's entries, written behind them by a worker.
create table audit_seals (
  entry_id text primary key,
  chain text not null,
  position bigint not null,
  hash bytea not null,
  unique (chain, position)
);

create table idempotency_keys (
  credential_id text not null,
  path text not null,
  key text not null,
  project_id text references projects (id) on delete cascade,
  request_hash text not null,
  status integer,
  body jsonb,
  sealed_body text,
  headers jsonb,
  created_at timestamptz(3) not null default now(),
  primary key (credential_id, path, key)
);
create index idempotency_keys_created on idempotency_keys (created_at);

create table worker_heartbeats (
  instance_id text primary key,
  kinds text[] not null,
  started_at timestamptz(3) not null,
  beat_at timestamptz(3) not null
);
