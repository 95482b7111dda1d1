-- breaking: false, transaction: none

-- Context of the span that caused the work, as in the header `traceparent`; null without telemetry.
alter table events add column if not exists trace_context text;
alter table ingestion_attempts add column if not exists trace_context text;
alter table generation_work add column if not exists trace_context text;
alter table orchestration_runs add column if not exists trace_context text;
alter table orchestration_node_executions add column if not exists trace_context text;
alter table trigger_firings add column if not exists trace_context text;
alter table task_dispatches add column if not exists trace_context text;
alter table eval_results add column if not exists trace_context text;
