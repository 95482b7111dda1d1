-- Quotas with their counters; the marks that the hash chain and the audit of reads need.

create table quotas (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  scope text not null check (scope in ('project', 'api_key', 'agent', 'actor')),
  -- Plain text: a quota stays, inert, when what it names is deleted.
  scope_ref text,
  metric text not null check (metric in ('requests', 'tokens', 'cost_usd', 'storage_bytes')),
  "window" text not null check ("window" in ('rolling_1m', 'rolling_1h', 'rolling_24h', 'calendar_month', 'current')),
  "limit" double precision not null check ("limit" > 0),
  mode text not null check (mode in ('enforce', 'monitor')),
  meter_type text check (meter_type in ('llm_tokens', 'compute_execution', 'api_request', 'storage')),
  on_unpriced text check (on_unpriced in ('block', 'allow')),
  warn_at double precision[] not null default '{}',
  -- What was reported for which window: quota.exceeded, the audit entry of a monitored breach, the highest warning.
  fired_window_key text,
  last_fired_at timestamptz(3),
  audited_window_key text,
  warned_window_key text,
  warned_fraction double precision,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create unique index quotas_identity on quotas (project_id, scope, scope_ref, metric, "window", meter_type) nulls not distinct;
create index quotas_project on quotas (project_id, created_at desc, id desc);

-- Counted by every request of a project key. No foreign key: counting must not wait for a transaction that deletes or
-- changes a quota; counters of deleted quotas go with the quota or with the daily pruning. The fill factor leaves room
-- to count inside the page.
create table quota_counters (
  quota_id text not null,
  window_key text not null,
  window_start timestamptz(3) not null,
  count bigint not null,
  primary key (quota_id, window_key)
) with (fillfactor = 50);
create index quota_counters_start on quota_counters (window_start);

-- A seal outlives its entry: retention marks it, so that the chain stays checkable.
alter table audit_seals add column pruned boolean not null default false;

create function audit_seals_append_only() returns trigger language plpgsql as $$
begin
  if tg_op = 'UPDATE' and current_setting('muster.audit_retention', true) = 'on' then
    return new;
  end if;
  raise exception 'audit seals are append-only';
end $$;
create trigger audit_seals_append_only before update or delete on audit_seals
  for each row execute function audit_seals_append_only();
create trigger audit_seals_no_truncate before truncate on audit_seals
  for each statement execute function audit_seals_append_only();

-- When the last complete sealing pass began.
create table audit_sealing (
  singleton boolean primary key default true check (singleton),
  passed_at timestamptz(3) not null
);

-- Whoever changes the switch, every process hears of it.
create function audit_reads_changed() returns trigger language plpgsql as $$
begin
  perform pg_notify('muster_audit_reads', new.id);
  return null;
end $$;
create trigger projects_audit_reads_changed after update of audit_reads_enabled on projects
  for each row when (old.audit_reads_enabled is distinct from new.audit_reads_enabled)
  execute function audit_reads_changed();
