-- breaking: false

-- What a step sent to its model, in addition to the messages of its turn: the step that differs from the step before. Text, which keeps
-- the order of keys. Null if the requests of the turn are together too large. Not the texts of searches: they can be erased.
create table step_requests (
  generation_id text not null references generations (id) on delete cascade,
  n integer not null,
  body text,
  primary key (generation_id, n)
);

-- When the model had answered; the calls of the answer follow.
alter table generation_steps add column answered_at timestamptz(3);
