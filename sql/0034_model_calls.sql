-- Turns that wait for their model without a worker: the failed attempts at the model call of the step in progress, and the
-- time of the next one.
alter table generations add column model_attempts integer not null default 0, add column model_retry_at timestamptz;

-- Why a conversation has no name, or no summary of its older messages, although one was requested.
alter table sessions add column title_error jsonb;
alter table conversations add column summary_error jsonb;
