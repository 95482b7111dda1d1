-- Sign-in with the identity provider of a company. A user whom the first sign-in made has no password.
alter table users alter column password_hash drop not null;

-- Accounts at a provider, and the user that each signs in.
create table user_identities (
  issuer text not null,
  subject text not null,
  user_id text not null references users (id) on delete cascade,
  -- What the provider called the account last.
  label text,
  created_at timestamptz(3) not null default now(),
  last_login_at timestamptz(3),
  primary key (issuer, subject)
);
create index user_identities_user on user_identities (user_id, created_at desc);

-- Sign-ins in progress, from the redirect to the provider to the redemption of the one-time code. Everything that a browser
-- holds is stored as its SHA-256.
create table oidc_logins (
  state_hash bytea primary key,
  cookie_hash bytea not null,
  -- Address of the browser, of IPv6 its network: what the number of unfinished sign-ins is limited by.
  network text not null,
  return_to text not null,
  code_challenge text not null,
  answered_at timestamptz(3),
  code_hash bytea unique,
  issuer text,
  subject text,
  expires_at timestamptz(3) not null,
  foreign key (issuer, subject) references user_identities (issuer, subject) on delete cascade
);
create index oidc_logins_network on oidc_logins (network, expires_at);
create index oidc_logins_expires on oidc_logins (expires_at);
create index oidc_logins_identity on oidc_logins (issuer, subject) where issuer is not null;
