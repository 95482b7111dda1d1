-- What runs keep of turns, and runs that were seeded with it: what is erased with the content of a turn.
create index orchestration_runs_retry on orchestration_runs (retry_of_run_id) where retry_of_run_id is not null;
