-- OAuth 2.1 (identity): what the authorization server keeps. Any web process continues what another one began.

-- Clients that registered themselves, and metadata documents that somebody consented to. Built-in clients have no row.
create table oauth_clients (
  -- An `oac_` id, or the https URL of the document.
  id text primary key,
  kind text not null check (kind in ('registered', 'metadata_document')),
  client_name text,
  metadata jsonb not null check (octet_length(metadata::text) <= 16384),
  -- SHA-256; null for clients without a secret.
  secret_hash bytea,
  created_at timestamptz(3) not null default now(),
  last_used_at timestamptz(3)
);
create index oauth_clients_unused on oauth_clients (created_at) where last_used_at is null;

create table oauth_grants (
  id text primary key,
  user_id text not null references users (id) on delete cascade,
  -- Null where it is not about a project: sign-in alone, and first-party clients that act as their user.
  project_id text references projects (id) on delete cascade,
  client_id text not null,
  client_name text,
  scopes text[] not null,
  -- The part of the scopes that is about the identity of the user.
  openid_scopes text[] not null,
  -- The end that was consented to, and the one that holds as long as no token is refreshed.
  ends_at timestamptz(3) not null,
  expires_at timestamptz(3) not null,
  created_at timestamptz(3) not null default now(),
  last_used_at timestamptz(3),
  revoked_at timestamptz(3),
  revoked_reason text
);
create index oauth_grants_user on oauth_grants (user_id, id);
create index oauth_grants_project on oauth_grants (project_id);
create index oauth_grants_client on oauth_grants (client_id);
create index oauth_grants_expires on oauth_grants (expires_at);

-- Requests, sessions, codes, device codes, tokens and seen proofs. Rows are found by hashes; what they hold is sealed.
create table oauth_objects (
  model text not null,
  id_hash bytea not null,
  uid_hash bytea,
  user_code_hash bytea,
  grant_id text references oauth_grants (id) on delete cascade,
  sealed text,
  consumed_at timestamptz(3),
  -- Of a device code: the last poll, and how many seconds the next one has to wait.
  polled_at timestamptz(3),
  poll_seconds integer not null default 5,
  expires_at timestamptz(3) not null,
  primary key (model, id_hash)
);
create unique index oauth_objects_uid on oauth_objects (model, uid_hash) where uid_hash is not null;
create unique index oauth_objects_user_code on oauth_objects (model, user_code_hash) where user_code_hash is not null;
create index oauth_objects_grant on oauth_objects (grant_id) where grant_id is not null;
create index oauth_objects_expires on oauth_objects (expires_at);

-- Keys that sign id_tokens. A retired one verifies for a day.
create table oauth_keys (
  kid text primary key,
  sealed text not null,
  created_at timestamptz(3) not null default now(),
  retired_at timestamptz(3)
);

-- What callers without a credential have used of a limit in its current window.
create table oauth_limits (
  kind text not null,
  subject text not null,
  count integer not null,
  started_at timestamptz(3) not null default now(),
  primary key (kind, subject)
);
create index oauth_limits_started on oauth_limits (started_at);
