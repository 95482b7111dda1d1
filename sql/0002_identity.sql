-- breaking: false

-- Users, projects, keys, policies, secrets; sign-in and the OAuth server.

create table users (
  id text primary key,
  username text not null,
  -- Null for a user that was created by the first company sign-in.
  password_hash text,
  role text not null default 'user' check (role in ('admin', 'user')),
  -- Part of every user token: an increase ends all earlier tokens.
  token_version integer not null default 1,
  last_login_at timestamptz(3), disabled_at timestamptz(3),
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  -- Name that end users see.
  display_name text
);
create unique index users_username on users (lower(username));

-- Failed logins by username, whether or not the user exists: a lockout must not reveal it.
create table login_failures (
  username text primary key,
  failures integer not null,
  first_failed_at timestamptz(3) not null default now(),
  locked_until timestamptz(3)
);

create table policies (
  id text primary key,
  name text, description text, document jsonb not null, version integer not null default 1,
  -- Part of the deployment: attachable, never changed by a request.
  managed boolean not null default false,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);

create table policy_versions (
  policy_id text not null references policies (id) on delete cascade,
  version integer not null, name text, description text, document jsonb not null, created_by text,
  created_at timestamptz(3) not null default now(),
  primary key (policy_id, version)
);

create table user_policies (
  user_id text not null references users (id) on delete cascade,
  policy_id text not null references policies (id) on delete restrict,
  position integer not null,
  primary key (user_id, policy_id)
);
create index user_policies_policy on user_policies (policy_id);

create table projects (
  id text primary key,
  name text not null, description text,
  guardrail_ids text[] not null default '{}',
  default_model_route_id text,
  max_run_depth integer check (max_run_depth >= 1),
  max_concurrent_runs integer check (max_concurrent_runs >= 1),
  max_chain_generations integer check (max_chain_generations >= 1),
  audit_reads_enabled boolean not null default false,
  trace_content_mode text not null default 'full' check (trace_content_mode in ('full', 'none')),
  trace_content_retention_days integer check (trace_content_retention_days >= 1),
  -- No content of the project is erased before.
  content_hold_until timestamptz(3),
  -- Days after which conversations, and traces with their turns, are deleted. Null: never.
  conversation_retention_days integer, trace_retention_days integer,
  require_priced_model boolean not null default false,
  tags jsonb not null default '{}',
  paused_at timestamptz(3), pause_reason text, delete_at timestamptz(3),
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  run_retention_days integer,
  -- Language of texts for searches by words: `auto` or a text search configuration. Null for the deployment's.
  search_language text
);
create index projects_guardrails on projects using gin (guardrail_ids);
create index projects_default_model_route on projects (default_model_route_id) where default_model_route_id is not null;
create index projects_delete_at on projects (delete_at) where delete_at is not null;
create index projects_retention on projects (id) where trace_content_retention_days is not null;
create index projects_conversation_retention on projects (id) where conversation_retention_days is not null;
create index projects_trace_retention on projects (id) where trace_retention_days is not null;
create index projects_run_retention on projects (id) where run_retention_days is not null;
create constraint trigger row_counts_dropped after delete on projects deferrable initially deferred
  for each row execute function drop_row_counts();

-- Notifies all processes of a change of the switch, whatever statement makes it.
create function audit_reads_changed() returns trigger language plpgsql as $$
begin
  perform pg_notify('muster_audit_reads', new.id);
  return null;
end $$;
create trigger projects_audit_reads_changed after update of audit_reads_enabled on projects
  for each row when (old.audit_reads_enabled is distinct from new.audit_reads_enabled)
  execute function audit_reads_changed();

create table project_keys (
  id text primary key,
  name text,
  -- SHA-256 of the complete key: 256 random bits need no slow hash.
  key_hash bytea not null unique,
  key_prefix text not null,
  previous_key_hash bytea, previous_key_expires_at timestamptz(3),
  user_id text not null references users (id) on delete cascade,
  project_id text references projects (id) on delete cascade,
  allowed_ips text[],
  expires_at timestamptz(3), last_used_at timestamptz(3), rotated_at timestamptz(3),
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  -- Last request with an Origin header, as browsers send it, to the minute: a key does not belong in a page.
  browser_used_at timestamptz(3)
);
create index project_keys_previous on project_keys (previous_key_hash) where previous_key_hash is not null;
create index project_keys_user on project_keys (user_id);
create index project_keys_project on project_keys (project_id);

create table project_key_policies (
  key_id text not null references project_keys (id) on delete cascade,
  policy_id text not null references policies (id) on delete restrict,
  position integer not null,
  primary key (key_id, policy_id)
);
create index project_key_policies_policy on project_key_policies (policy_id);

create table secrets (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  sealed_value text,
  -- Where an external value is: { type, path }.
  source jsonb,
  previous_sealed_value text, previous_source jsonb, previous_until timestamptz(3),
  value_updated_at timestamptz(3) not null default now(),
  expires_at timestamptz(3),
  -- The value of expires_at that was reported.
  expiry_reported_for timestamptz(3),
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  constraint secrets_value check ((sealed_value is null) <> (source is null))
);
create index secrets_project on secrets (project_id, created_at desc, id desc);
create index secrets_expiring on secrets (expires_at)
  where expires_at is not null and expiry_reported_for is distinct from expires_at;

-- First requests under an Idempotency-Key with their responses.
create table idempotency_keys (
  credential_id text not null, path text not null, key text not null,
  project_id text references projects (id) on delete cascade,
  request_hash text not null,
  -- The request that may store the response: a request whose claim was committed without its knowledge claims it again.
  claim text,
  -- The default is for processes that do not renew leases.
  leased_until timestamptz(3) not null default now() + interval '15 minutes',
  -- Work committed before the response, for a repeat that must respond instead of the first request.
  made jsonb,
  status integer, body jsonb, sealed_body text, headers jsonb,
  created_at timestamptz(3) not null default now(),
  primary key (credential_id, path, key)
);
create index idempotency_keys_created on idempotency_keys (created_at);
create index idempotency_keys_project on idempotency_keys (project_id) where project_id is not null;
-- Finds responses with erased content by the IDs in them.
create index idempotency_keys_named on idempotency_keys using gin (
  jsonb_path_query_array(body, 'strict $.** ? (@.type() == "string" && @ like_regex "^[a-z_]+_[0-9a-z]{26}$")')
) where body is not null;

-- Fails the statement that would commit work of a request whose key another request has claimed.
create function idempotency_claim_lost() returns text language plpgsql as $$
begin
  raise exception 'another request has claimed the Idempotency-Key' using errcode = 'P0409';
end $$;

-- Accounts at identity providers of companies, and the users they sign in.
create table user_identities (
  issuer text not null, subject text not null,
  user_id text not null references users (id) on delete cascade,
  -- Last name of the account at the provider.
  label text,
  created_at timestamptz(3) not null default now(),
  last_login_at timestamptz(3),
  primary key (issuer, subject)
);
create index user_identities_user on user_identities (user_id, created_at desc);

-- Sign-ins in progress, from the redirect to the provider to the redemption of the one-time code. Values that a browser
-- holds are stored as SHA-256.
create table oidc_logins (
  state_hash bytea primary key,
  cookie_hash bytea not null,
  -- Address of the browser, for IPv6 its network: the number of unfinished sign-ins per network is limited.
  network text not null,
  return_to text not null, code_challenge text not null, answered_at timestamptz(3),
  code_hash bytea unique,
  issuer text, subject text, expires_at timestamptz(3) not null,
  foreign key (issuer, subject) references user_identities (issuer, subject) on delete cascade
);
create index oidc_logins_network on oidc_logins (network, expires_at);
create index oidc_logins_expires on oidc_logins (expires_at);
create index oidc_logins_identity on oidc_logins (issuer, subject) where issuer is not null;

-- OAuth clients that registered themselves, and metadata documents with a consent. Built-in clients have no row.
create table oauth_clients (
  -- An `oac_` ID, or the https URL of the document.
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
  -- Null for sign-in only, and for first-party clients that act as their user.
  project_id text references projects (id) on delete cascade,
  client_id text not null, client_name text, scopes text[] not null,
  -- Scopes about the identity of the user.
  openid_scopes text[] not null,
  -- The end in the consent, and the end unless a token is refreshed.
  ends_at timestamptz(3) not null, expires_at timestamptz(3) not null,
  created_at timestamptz(3) not null default now(),
  last_used_at timestamptz(3), revoked_at timestamptz(3),
  revoked_reason text
);
create index oauth_grants_user on oauth_grants (user_id, id);
create index oauth_grants_project on oauth_grants (project_id);
create index oauth_grants_client on oauth_grants (client_id);
create index oauth_grants_expires on oauth_grants (expires_at);

-- Requests, sessions, codes, device codes, tokens and used proofs, sealed and found by hashes: any web process continues
-- a flow that another one began.
create table oauth_objects (
  model text not null, id_hash bytea not null, uid_hash bytea, user_code_hash bytea,
  grant_id text references oauth_grants (id) on delete cascade,
  sealed text, consumed_at timestamptz(3),
  -- Device codes: time of the last poll, and the seconds until the next one.
  polled_at timestamptz(3),
  poll_seconds integer not null default 5,
  expires_at timestamptz(3) not null,
  primary key (model, id_hash)
);
create unique index oauth_objects_uid on oauth_objects (model, uid_hash) where uid_hash is not null;
create unique index oauth_objects_user_code on oauth_objects (model, user_code_hash) where user_code_hash is not null;
create index oauth_objects_grant on oauth_objects (grant_id) where grant_id is not null;
create index oauth_objects_expires on oauth_objects (expires_at);

-- Keys that sign id_tokens. A retired key verifies for a day.
create table oauth_keys (
  kid text primary key,
  sealed text not null,
  created_at timestamptz(3) not null default now(),
  retired_at timestamptz(3)
);

-- Use of limits by callers without a credential, in the current window.
create table oauth_limits (
  kind text not null, subject text not null, count integer not null,
  started_at timestamptz(3) not null default now(),
  primary key (kind, subject)
);
create index oauth_limits_started on oauth_limits (started_at);
