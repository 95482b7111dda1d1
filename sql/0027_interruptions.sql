-- breaking: false

-- Attempts at turns that ended before their turn did, because their worker was lost or stopped; a row is written when that
-- happens, or by the claim that follows. Attempts that ended otherwise have none.
create table generation_interruptions (
  generation_id text not null references generations (id) on delete cascade,
  -- Number of the attempt.
  number integer not null,
  -- Process of the attempt; null if unknown.
  instance_id text,
  -- End of its lease, if it was lost.
  lease_expires_at timestamptz(3),
  ended_at timestamptz(3) not null,
  ended_by text not null check (ended_by in ('released', 'lease_lost')),
  -- Start and process of the next attempt; null until then.
  continued_at timestamptz(3), continued_by text,
  primary key (generation_id, number)
);

-- The same of node executions. They are numbered in their order, since a released delivery is not counted.
create table node_interruptions (
  node_execution_id text not null references orchestration_node_executions (id) on delete cascade,
  number integer not null,
  instance_id text,
  lease_expires_at timestamptz(3),
  ended_at timestamptz(3) not null,
  ended_by text not null check (ended_by in ('released', 'lease_lost')),
  continued_at timestamptz(3), continued_by text,
  primary key (node_execution_id, number)
);
