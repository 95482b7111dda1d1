-- Which process holds a lease, so that others end the leases of one that is gone. Null where none does, and for leases that were
-- taken before this column was there: these run out.
alter table worker_heartbeats add column holder text, add column host text, add column pid integer, add column pid_started text;

alter table ingestion_attempts add column holder text;
alter table actor_purges add column holder text;
alter table memory_rule_firings add column holder text;
alter table approval_attempts add column holder text;
alter table decision_attempts add column holder text;
alter table trigger_firings add column holder text;
alter table task_dispatches add column holder text;
alter table playbook_export_attempts add column holder text;
alter table orchestration_node_executions add column holder text;
alter table webhook_deliveries add column holder text;
