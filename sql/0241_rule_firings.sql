-- Firings of memory rules are work items: their message is the lease.
alter table memory_rule_firings drop column holder, drop column heartbeat_at;
