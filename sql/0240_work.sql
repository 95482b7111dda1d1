-- The message of a work item is its lease; the row keeps the fence (`claims`) and `due_at`: when a queued item is due, when a
-- running one was claimed.
alter table playbook_export_attempts drop column holder, drop column heartbeat_at;
alter table decision_attempts drop column holder, drop column heartbeat_at;
alter table approval_attempts drop column holder, drop column heartbeat_at;
alter table actor_purges drop column holder, drop column heartbeat_at;
alter table formation_attempts drop column holder, drop column heartbeat_at;

-- Deleting a project reads what belongs to it.
create index memory_entries_project on memory_entries (project_id);
create index idempotency_keys_project on idempotency_keys (project_id) where project_id is not null;
