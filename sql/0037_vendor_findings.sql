-- What calls and checks found about the models of a provider, by model, which each call reads with the row; and the last check
-- by capabilities, which only its reader does.
alter table ai_providers add column profile jsonb not null default '{}', add column last_check jsonb;

-- Documents that searches by meaning find only in part, or not at all, because the embedding model refused their texts.
alter table documents add column embedding text check (embedding = 'partial');
create index documents_embedding on documents (project_id) where embedding is not null;
