-- Ingestions are work items: their message is the lease.
alter table ingestion_attempts drop column holder, drop column heartbeat_at;
