-- Runs that wait, in pages of a bounded size however many there are.
create index orchestration_runs_waiting on orchestration_runs (id) where status in ('sleeping', 'awaiting_input');
