-- How long attempts of nodes waited for a worker lately. Rows are added in the order of their times, so a summary of
-- ranges of pages finds those of the last minutes, and costs writers nothing.
create index orchestration_node_executions_started on orchestration_node_executions using brin (started_at)
  with (pages_per_range = 16, autosummarize = on);
