-- breaking: false

-- Rows of the next request, after the receiver has refused the content of a larger one. Null for the default.
alter table telemetry_targets add column batch_rows integer;
