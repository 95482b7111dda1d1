-- breaking: false

-- Datasets, evals, runs of evals.

create table datasets (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null, description text,
  -- Number and total bytes of the items, whose writers lock this row. A run copies all items in one transaction.
  item_count integer not null default 0, item_bytes bigint not null default 0,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);
create index datasets_project on datasets (project_id, created_at desc, id desc);
create unique index datasets_name on datasets (project_id, name);

create table dataset_items (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  dataset_id text not null references datasets (id) on delete cascade,
  input json not null, expected_output text, metadata json,
  -- Size of the three as JSON, summed for the footprint of a project.
  bytes bigint not null,
  source_generation_id text references generations (id) on delete set null,
  -- Loose, both: a purge of an end user finds its copies by them.
  source_conversation_id text, source_actor_id text,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);
-- In the order of the IDs: rows of one import have one time.
create index dataset_items_dataset on dataset_items (dataset_id, created_at, id);
create index dataset_items_project on dataset_items (project_id) include (bytes);
create index dataset_items_source on dataset_items (source_generation_id) where source_generation_id is not null;
create index dataset_items_source_conversation on dataset_items (source_conversation_id) where source_conversation_id is not null;
create index dataset_items_source_actor on dataset_items (source_actor_id) where source_actor_id is not null;

create table evals (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  agent_id text not null references agents (id) on delete cascade,
  dataset_id text not null references datasets (id) on delete cascade,
  scorers json not null,
  pass_threshold double precision check (pass_threshold between 0 and 1),
  max_error_rate double precision check (max_error_rate between 0 and 1),
  group_by text,
  -- Counts the changes that affect verdicts.
  revision integer not null default 1,
  -- Providers of model judges among the scorers, and whether one uses the default route of the project.
  ai_provider_ids text[] not null default '{}',
  inherits_route boolean not null default false,
  author jsonb,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);
create index evals_project on evals (project_id, created_at desc, id desc);
create unique index evals_name on evals (project_id, name);
create index evals_agent on evals (agent_id, created_at desc, id desc);
create index evals_dataset on evals (dataset_id, created_at desc, id desc);
create index evals_providers on evals using gin (ai_provider_ids);
create index evals_inheriting on evals (project_id) where inherits_route;
create index evals_author on evals ((author ->> 'id'));

-- Each item of the dataset becomes a turn of one version of the agent, which is scored.
create table eval_runs (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  eval_id text not null references evals (id) on delete cascade,
  -- Copied at the start: the eval may change during the run.
  eval_revision integer not null,
  agent_id text not null, agent_version integer not null, scorers json not null,
  pass_threshold double precision,
  max_error_rate double precision,
  group_by text,
  -- Version of the decider by scorer, and the questions of the deciders.
  decider_versions json, deciders json,
  status text not null default 'queued' check (status in ('queued', 'running', 'completed', 'failed', 'canceled')),
  baseline_run_id text references eval_runs (id) on delete set null,
  -- Loose.
  trigger_id text,
  aggregate_scores json, passed boolean, item_count integer not null,
  completed_count integer not null default 0, errored_count integer not null default 0,
  metadata json, error jsonb,
  -- Context of tool calls, sealed until the run has ended.
  context text,
  -- Principal that started it: { type, id, via }.
  authority jsonb not null,
  -- Whether a caller waits for it: its items have priority.
  waited boolean not null default false,
  started_at timestamptz(3), finished_at timestamptz(3),
  -- Time of the last stored result: the sweep checks stale runs.
  active_at timestamptz(3) not null default now(),
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
) with (fillfactor = 80);
create index eval_runs_eval on eval_runs (eval_id, created_at, id);
create index eval_runs_project on eval_runs (project_id);
create index eval_runs_baseline on eval_runs (baseline_run_id) where baseline_run_id is not null;
create index eval_runs_live on eval_runs (active_at) where status in ('queued', 'running');
-- Runs by which versions of agents pass the gate of their release.
create index eval_runs_passed on eval_runs (eval_id, agent_version, created_at, id) where status = 'completed' and passed;

create table eval_results (
  -- Allocated in the order of the dataset when the run begins.
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  eval_run_id text not null references eval_runs (id) on delete cascade,
  -- Loose, all IDs.
  item_id text not null,
  source_generation_id text, source_conversation_id text, source_actor_id text, generation_id text,
  -- A work item. 'queued' waits for its turn, or with one for its scorers, 'asked' for the end of its turn; only 'done' is
  -- presented.
  state text not null default 'queued' check (state in ('queued', 'running', 'asked', 'done')),
  input json not null, expected_output text, metadata json,
  -- Whether the turn stores its content: otherwise the result has no output.
  content_mode text not null default 'full' check (content_mode in ('full', 'none')),
  output text, object json,
  -- Results of expensive scorers so far; of all scorers when it is done.
  scores json not null default '[]',
  passed boolean, error jsonb, bytes bigint not null,
  due_at timestamptz(3) default now(),
  claims integer not null default 0, losses integer not null default 0, failures integer not null default 0,
  -- Time of the result; before, start of the run.
  created_at timestamptz(3) not null default now(),
  unique (eval_run_id, item_id)
) with (fillfactor = 70);
create index eval_results_done on eval_results (eval_run_id, id) where state = 'done';
create unique index eval_results_generation on eval_results (generation_id) where generation_id is not null;
create index eval_results_project on eval_results (project_id) include (bytes);
create index eval_results_open on eval_results (eval_run_id, state) where state <> 'done';
create index eval_results_due on eval_results (due_at, id) where due_at is not null;
create index eval_results_source on eval_results (source_generation_id) where source_generation_id is not null;
create index eval_results_source_conversation on eval_results (source_conversation_id) where source_conversation_id is not null;
create index eval_results_source_actor on eval_results (source_actor_id) where source_actor_id is not null;

-- Responses of turns that store no content, until they are scored.
create unlogged table eval_answers_unlogged (
  result_id text primary key references eval_results (id) on delete cascade,
  output text,
  object json
);
