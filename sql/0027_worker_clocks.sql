-- By how many milliseconds the clock of a worker was ahead of the database at its last heartbeat.
alter table worker_heartbeats add column clock_ahead_ms double precision;
