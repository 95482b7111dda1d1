-- breaking: false

-- What the steps of a turn sent to the model, in addition to the messages of the turn: one JSON text per step, with the parts that differ
-- from the step before. As text, which keeps the order of keys. Null if none is stored.
alter table generations add column requests text[];

-- When the model had answered; the calls of the answer follow.
alter table generation_steps add column answered_at timestamptz(3);
