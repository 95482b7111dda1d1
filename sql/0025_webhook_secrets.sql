-- breaking: false, transaction: none

-- The webhooks of a secret.
create index concurrently webhooks_secret on webhooks (secret_id) where secret_id is not null;
alter table webhooks validate constraint webhooks_secret_id_fkey;
