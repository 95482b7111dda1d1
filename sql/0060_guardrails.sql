-- Guardrails: versioned rules that calls of tools are held to, what they said of each call, and what they are attached to.

-- What is locked is locked before the work begins.
alter table tools add column guardrail_ids text[];
alter table agents
  add column guardrail_ids text[],
  -- `react` or `terminate`; null is terminate.
  add column on_approval_expiry text;
create index tools_guardrails on tools using gin (guardrail_ids) where guardrail_ids is not null;
create index agents_guardrails on agents using gin (guardrail_ids) where guardrail_ids is not null;
create index projects_guardrails on projects using gin (guardrail_ids);

create table guardrails (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  description text,
  version integer not null default 1 check (version >= 1),
  -- json, not jsonb: what a caller wrote comes back with its keys in their order.
  document json not null,
  -- Loose: a tool may be deleted; what the document reads of it is missing from then on.
  context_tool_id text,
  context_mode text default 'merge',
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index guardrails_project on guardrails (project_id, created_at desc, id desc);
create index guardrails_context_tool on guardrails (context_tool_id) where context_tool_id is not null;

create table guardrail_versions (
  id text primary key,
  guardrail_id text not null references guardrails (id) on delete cascade,
  version integer not null check (version >= 1),
  config json not null,
  label text,
  -- Loose: a version outlives its author.
  created_by text,
  created_at timestamptz(3) not null default now(),
  unique (guardrail_id, version)
);

-- One row for each guardrail that judged a call. What they name is plain: it may be deleted.
create table guardrail_evaluations (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  guardrail_id text not null,
  guardrail_version integer,
  scope text not null,
  tool_id text,
  tool text,
  action text,
  class text not null,
  decision text not null,
  guard_result boolean,
  context_source text not null,
  context_snapshot json not null,
  agent_id text,
  orchestration_run_id text,
  generation_id text,
  approval_id text,
  created_at timestamptz(3) not null default now()
);
create index guardrail_evaluations_project on guardrail_evaluations (project_id, created_at desc, id desc);
create index guardrail_evaluations_guardrail on guardrail_evaluations (guardrail_id, created_at desc, id desc);
create index guardrail_evaluations_tool on guardrail_evaluations (tool_id, created_at desc, id desc) where tool_id is not null;
create index guardrail_evaluations_agent on guardrail_evaluations (agent_id, created_at desc, id desc) where agent_id is not null;
create index guardrail_evaluations_generation on guardrail_evaluations (generation_id, id) where generation_id is not null;
create index guardrail_evaluations_run on guardrail_evaluations (orchestration_run_id, id) where orchestration_run_id is not null;
-- What was not simply executed is rare and looked for.
create index guardrail_evaluations_decision on guardrail_evaluations (project_id, decision, created_at desc, id desc)
  where decision <> 'execute';
create index guardrail_evaluations_time on guardrail_evaluations (created_at);

create trigger row_counts_inserted after insert on guardrail_evaluations referencing new table as changed
  for each statement execute function count_rows();
create trigger row_counts_deleted after delete on guardrail_evaluations referencing old table as changed
  for each statement execute function count_rows();
create trigger row_counts_kept before update of project_id on guardrail_evaluations
  for each statement execute function refuse_other_scope();
