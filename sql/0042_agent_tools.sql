-- Tools of agents, and the journal of steps that call them.

alter table agents
  -- json, not jsonb: definitions of tools keep the order of their keys.
  add column tool_bindings json,
  add column active_tool_ids text[],
  add column tool_choice json,
  add column stop_conditions json,
  add column step_rules json,
  add column boundary_policy json,
  -- Tools that bindings name, and secrets that the definitions in bindings name. A tool or secret that is deleted stays here.
  add column tool_ids text[],
  add column secret_ids text[];
create index agents_tools on agents using gin (tool_ids) where tool_ids is not null;
create index agents_secrets on agents using gin (secret_ids) where secret_ids is not null;

alter table generations
  -- Writes of the journal so far: with the attempt it says whether a claim has seen the last one.
  add column journalled integer not null default 0,
  -- { tools, bytes, estimated_tokens } of what the model could call.
  add column tool_surface jsonb;

-- The step under way of a turn: at position 0 what the model answered, from 1 on a row for each of its calls that was
-- started; without a body its outcome is not known. In content mode `none` the settled steps of the turn too, at position 0.
create table generation_journal (
  generation_id text not null references generations (id) on delete cascade,
  n integer not null,
  position integer not null,
  body text,
  primary key (generation_id, n, position)
);
-- The same for content mode `none`, sealed; unlogged, so that neither the log nor a backup of it ever holds it.
create unlogged table generation_journal_unlogged (like generation_journal including all);
alter table generation_journal_unlogged add foreign key (generation_id) references generations (id) on delete cascade;
