-- A run that is stopped leaves the runs below it to workers, page by page. Until its turn comes such a run does nothing more:
-- whatever begins work for a run asks this first. By primary keys, once for each run above it.

-- Whether a run is about to be stopped: its orchestration is being deleted, or the attempt of the node that started it, or
-- that started a run above it, is over.
create function orchestration_run_stopping(orchestration text, parent_execution text) returns boolean
language plpgsql stable as $$
declare
  above record;
begin
  if exists (select from orchestrations where id = orchestration and managed_by = 'deletion') then
    return true;
  end if;
  while parent_execution is not null loop
    select e.status, r.parent_execution_id into above
    from orchestration_node_executions e join orchestration_runs r on r.id = e.run_id
    where e.id = parent_execution;
    if not found or above.status <> 'running' then
      return true;
    end if;
    parent_execution := above.parent_execution_id;
  end loop;
  return false;
end $$;

-- Orchestrations that are deleted once their runs have been stopped: invisible, as those that a module manages are.
create index orchestrations_deletion on orchestrations (id) where managed_by = 'deletion';
