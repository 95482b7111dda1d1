-- Firings of triggers are work items: their message is the lease.
alter table trigger_firings drop column holder, drop column heartbeat_at;
