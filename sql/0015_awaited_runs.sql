-- breaking: false

-- Whether a caller waits for the end of the run, or until it awaits input: the notification then has the run.
alter table orchestration_runs add column awaited boolean;
