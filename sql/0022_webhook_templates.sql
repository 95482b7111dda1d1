-- breaking: false

-- A template shapes the body of deliveries for a chat or a mail service. `mail` has the addresses of a mail; the secret is the key of the
-- mail service. The foreign key is checked at the end of a statement, because a deleted project deletes both rows.
alter table webhooks
  add column template text,
  add column mail jsonb,
  add column secret_id text;
alter table webhooks add constraint webhooks_secret_id_fkey foreign key (secret_id) references secrets (id) not valid;
