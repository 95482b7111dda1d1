-- Chats: settings of model completions. They keep no history.

create table chats (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  -- Null: calls go by the default model route of the project.
  ai_provider_id text references ai_providers (id),
  name text,
  instructions text,
  model text,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now(),
  check (model is null or ai_provider_id is not null)
);
create index chats_project on chats (project_id, created_at desc, id desc);
create index chats_ai_provider on chats (ai_provider_id) where ai_provider_id is not null;
create index chats_inheriting on chats (project_id) where ai_provider_id is null;

-- Nothing could be linked before there were chats.
update actors set chat_id = null where chat_id is not null;
create index actors_chat on actors (chat_id) where chat_id is not null;
alter table actors add constraint actors_chat_id_fkey foreign key (chat_id) references chats (id) on delete set null;
