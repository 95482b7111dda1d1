-- Refused sign-ins that are counted instead of audited one by one: an audit entry a minute says how many there were.

create table refused_attempts (
  action text not null,
  -- In lower case; empty for names that nobody has, which are counted together.
  username text not null,
  user_id text,
  -- Those that no entry counts yet, the first of them, and the address of the last.
  attempts bigint not null,
  since timestamptz(3) not null,
  ip text,
  audited_at timestamptz(3),
  primary key (action, username)
);

-- Who checks the hash chain of a project's audit entries. One check at a time: it reads and hashes every entry.
create table audit_verifications (
  chain text primary key,
  holder text not null,
  held_until timestamptz(3) not null
);
