-- Tokens of end users. A revocation raises the version, which every token carries.
alter table actors add column token_version integer not null default 1;

-- Set when the end user deletes the session, which is then visible to operators only.
alter table sessions add column hidden_at timestamptz(3);

-- Use of a limit by an actor, or by a key for the actors that it creates, until the end of the current window. Unlogged,
-- because every call of an end user writes here: a crash of the database empties it, and all windows start again.
create unlogged table actor_limits (
  subject text not null, name text not null,
  used bigint not null,
  resets_at timestamptz(3) not null,
  primary key (subject, name)
) with (fillfactor = 50);
create index actor_limits_resets on actor_limits (resets_at);

-- Last request of a key with an Origin header, as browsers send it, to the minute: a key does not belong in a page.
alter table project_keys add column browser_used_at timestamptz(3);
