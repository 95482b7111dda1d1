-- breaking: false

-- The web process that executes a turn in progress without a message (WEB_EXECUTES): HOLDER of its heartbeats.
alter table generation_work add column holder text;
