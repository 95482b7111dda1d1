-- Lists read these backwards. Where keys rise PostgreSQL splits a page at its end, so that pages stay full: those of a project
-- and of a tool take 10 MB in place of 18 for 100,000 evaluations that were written in the order of their ids.
drop index guardrail_evaluations_project, guardrail_evaluations_guardrail, guardrail_evaluations_tool,
  guardrail_evaluations_agent, guardrail_evaluations_decision;
create index guardrail_evaluations_project on guardrail_evaluations (project_id, created_at, id);
create index guardrail_evaluations_guardrail on guardrail_evaluations (guardrail_id, created_at, id);
create index guardrail_evaluations_tool on guardrail_evaluations (tool_id, created_at, id) where tool_id is not null;
create index guardrail_evaluations_agent on guardrail_evaluations (agent_id, created_at, id) where agent_id is not null;
-- What was not simply executed is rare and looked for.
create index guardrail_evaluations_decision on guardrail_evaluations (project_id, decision, created_at, id)
  where decision <> 'execute';
