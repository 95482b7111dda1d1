-- Runs of evals: each item of the dataset is asked of one version of the agent and judged.

create table eval_runs (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  eval_id text not null references evals (id) on delete cascade,
  -- What it was started with: the eval may change meanwhile.
  eval_revision integer not null,
  agent_id text not null,
  agent_version integer not null,
  scorers json not null,
  pass_threshold double precision,
  max_error_rate double precision,
  group_by text,
  -- The name of a scorer to the version of its decider, and what that asks.
  decider_versions json,
  deciders json,
  status text not null default 'queued' check (status in ('queued', 'running', 'completed', 'failed', 'canceled')),
  baseline_run_id text references eval_runs (id) on delete set null,
  -- Loose: a run outlives the trigger that started it.
  trigger_id text,
  aggregate_scores json,
  passed boolean,
  item_count integer not null,
  completed_count integer not null default 0,
  errored_count integer not null default 0,
  metadata json,
  error jsonb,
  -- What calls of tools carry, sealed, until the run has ended.
  context text,
  -- Who started it: { type, id, via }.
  authority jsonb not null,
  -- Whether somebody waits for it: its items go before others.
  waited boolean not null default false,
  started_at timestamptz(3),
  finished_at timestamptz(3),
  -- When a result was last stored: a run that is quiet for long is looked at.
  active_at timestamptz(3) not null default now(),
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
) with (fillfactor = 80);
-- A list reads it backwards.
create index eval_runs_eval on eval_runs (eval_id, created_at, id);
create index eval_runs_project on eval_runs (project_id);
create index eval_runs_baseline on eval_runs (baseline_run_id) where baseline_run_id is not null;
create index eval_runs_live on eval_runs (active_at) where status in ('queued', 'running');
-- The runs by which versions of agents pass the gate of their release.
create index eval_runs_passed on eval_runs (eval_id, agent_version, created_at, id) where status = 'completed' and passed;

create table eval_results (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  eval_run_id text not null references eval_runs (id) on delete cascade,
  -- Loose: a result outlives its item.
  item_id text not null,
  -- `queued` waits for a worker, `asked` for the end of its turn, `answered` for the scorers; only what is `done` is shown.
  state text not null default 'queued' check (state in ('queued', 'asked', 'answered', 'done')),
  input json not null,
  expected_output text,
  metadata json,
  -- Loose: a result outlives its turn.
  generation_id text,
  -- Whether the turn keeps its content: a result of one that does not has no output.
  content_mode text not null default 'full' check (content_mode in ('full', 'none')),
  output text,
  object json,
  -- What scorers that cost something have said so far; of those that are done what all have said.
  scores json not null default '[]',
  passed boolean,
  error jsonb,
  bytes bigint not null,
  -- Claims of scoring: the number that fences a late writer.
  claims integer not null default 0,
  -- Left alone until then: its project is paused.
  held_until timestamptz(3),
  -- When it was stored: before, when the run began.
  created_at timestamptz(3) not null default now(),
  unique (eval_run_id, item_id)
) with (fillfactor = 70);
-- Results in the order in which they came.
create index eval_results_done on eval_results (eval_run_id, created_at, id) where state = 'done';
create unique index eval_results_generation on eval_results (generation_id) where generation_id is not null;
create index eval_results_project on eval_results (project_id) include (bytes);
create index eval_results_held on eval_results (held_until) where held_until is not null;
create index eval_results_open on eval_results (eval_run_id, state) where state in ('queued', 'asked', 'answered');

-- Answers of turns that keep no content, until they are scored: in no log of the database, and a crash of it loses them.
create unlogged table eval_answers_unlogged (
  result_id text primary key references eval_results (id) on delete cascade,
  output text,
  object json
);
