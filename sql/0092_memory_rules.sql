-- What turns are given of what their agents know, and what memory stores take from turns.

alter table agents add column knowledge_config jsonb;

-- What was found for a turn, and what memory rules made of it by their ids.
alter table generations add column knowledge jsonb, add column extraction jsonb;

create table memory_rules (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  memory_store_id text not null references memory_stores (id) on delete cascade,
  "on" text not null check ("on" in ('generations.completed', 'conversation_messages.generated')),
  -- Loose: turns of agents that are gone match no more.
  source_agent_ids text[],
  agent_id text references agents (id),
  tool_id text references tools (id),
  action text,
  -- json, not jsonb: what a caller wrote comes back with its keys in their order.
  preset_parameters json,
  prompt text,
  ai_provider_id text references ai_providers (id),
  model text,
  enabled boolean not null default true,
  disabled_reason text,
  -- Whom a handler runs as: { type, id, via }.
  authority jsonb not null,
  -- Firings that failed one after the other.
  failures integer not null default 0,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now(),
  check (agent_id is null or tool_id is null)
);
create index memory_rules_project on memory_rules (project_id, created_at desc, id desc);
create index memory_rules_store on memory_rules (memory_store_id);
create index memory_rules_agent on memory_rules (agent_id) where agent_id is not null;
create index memory_rules_tool on memory_rules (tool_id) where tool_id is not null;
create index memory_rules_ai_provider on memory_rules (ai_provider_id) where ai_provider_id is not null;

-- One rule and one turn: made by the transaction that completes the turn, worked on once.
create table memory_rule_firings (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  memory_rule_id text not null references memory_rules (id) on delete cascade,
  generation_id text not null references generations (id) on delete cascade,
  -- asked: the turn of a handler is under way.
  state text not null default 'queued' check (state in ('queued', 'running', 'asked', 'done', 'failed')),
  -- When somebody has to look: a queued one at its next try, at a running one when its lease is over, at an asked one when
  -- the turn should have ended; never, null, at one that has settled.
  due_at timestamptz(3) default now(),
  -- Claims by workers: the number that fences a late writer.
  claims integer not null default 0,
  -- Claims whose worker was not heard of until its lease was over.
  losses integer not null default 0,
  -- Tries of the handler that failed.
  failures integer not null default 0,
  handler_generation_id text,
  -- What the handler said; erased with the end.
  facts jsonb,
  candidates integer not null default 0,
  -- The first of them have been written, or could not be.
  written integer not null default 0,
  created integer not null default 0,
  superseded integer not null default 0,
  skipped integer not null default 0,
  failed integer not null default 0,
  heartbeat_at timestamptz(3),
  created_at timestamptz(3) not null default now(),
  settled_at timestamptz(3),
  unique (memory_rule_id, generation_id)
) with (fillfactor = 70);
create index memory_rule_firings_due on memory_rule_firings (due_at, id);
create index memory_rule_firings_generation on memory_rule_firings (generation_id);
create index memory_rule_firings_project on memory_rule_firings (project_id);
create index memory_rule_firings_handler on memory_rule_firings (handler_generation_id) where state = 'asked';
create index memory_rule_firings_settled on memory_rule_firings (settled_at) where settled_at is not null;

-- What a rule brought into a store outlives it.
alter table memory_entries add foreign key (memory_rule_id) references memory_rules (id) on delete set null;
