-- Which providers name a secret, as their credential or in a header: asked when it is deleted (identity, 9.5).
create index ai_providers_secrets on ai_providers using gin (secret_ids);
