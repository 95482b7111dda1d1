-- Version of each worker, and its queues: by name, the slots of their handlers and how many of them one project may hold.
alter table worker_heartbeats add column version text, add column queues jsonb;
