-- Firings of schedules and events are mapped where they are fired.

-- Whether `input` has not passed through the input_mapping of the trigger.
alter table trigger_firings add column unmapped boolean not null default false;
