-- breaking: false, transaction: none

-- Entries of a turn or run, for its recovery record. The start of a turn is no entry of it: its resource is the agent.
create index concurrently audit_entries_work on audit_entries (resource_public_id, created_at)
  where starts_with(resource_public_id, 'gen_') or starts_with(resource_public_id, 'orch_run_');

-- The release that migrated the database with this as the last migration. The table belongs to the runner of migrations.
alter table if exists migrations add column if not exists release text;
