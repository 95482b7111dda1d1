-- Turns that nodes of runs and triggers ask for. Loose, all of them: a turn outlives what asked for it.

alter table generations
  add column trigger_id text,
  add column orchestration_run_id text,
  add column node_id text,
  add column node_attempt integer;

-- Ids of nodes are those of a graph: many projects have the same.
create index generations_run on generations (orchestration_run_id, created_at) where orchestration_run_id is not null;
create index generations_node on generations (project_id, node_id, created_at) where node_id is not null;
create index generations_trigger on generations (trigger_id, created_at) where trigger_id is not null;
