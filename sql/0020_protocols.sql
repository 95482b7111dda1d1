-- Runs of AG-UI clients: a repeated run streams the turn that the first one started.
create table ag_ui_runs (
  session_id text not null references sessions (id) on delete cascade,
  -- Digest of the client's run id.
  run bytea not null,
  -- Loose: the turn is inserted after this row. Null for a run that only stored messages.
  generation_id text,
  -- Frames of the turn before the run, of a turn that it resumed.
  after_frame integer not null default 0,
  created_at timestamptz(3) not null default now(),
  primary key (session_id, run)
);

alter table agents add column shared_state boolean not null default false;

-- State that an agent shares with its client.
alter table sessions add column state jsonb;

-- Loose: the turn that continues after the decision.
alter table approvals add column continuation_id text;
