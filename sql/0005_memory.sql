-- breaking: false

-- Memory stores, memories, and the ledger of submitted facts.

create table memory_stores (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null, description text,
  tags jsonb not null default '{}',
  duplicate_threshold double precision,
  supersede_threshold double precision,
  -- Null: the default of the platform.
  actor_memory_limit integer,
  -- Memories that are not invalidated, maintained by triggers; expired ones count until a sweep invalidates them.
  valid_count integer not null default 0,
  -- Part of valid_count with an actor.
  marked_count integer not null default 0,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
) with (fillfactor = 70);
create index memory_stores_project on memory_stores (project_id, created_at desc, id desc);
create index memory_stores_tags on memory_stores using gin (tags jsonb_path_ops);

create table memories (
  id text primary key,
  project_id text not null, memory_store_id text not null,
  -- End user of the memory; a foreign key deletes the memory with it. Null without one.
  actor_id text,
  content text not null,
  -- SHA-256 of the text in NFC with every run of whitespace as one space: equal texts.
  content_hash bytea not null,
  source_type text not null check (source_type in ('manual', 'conversation')),
  -- Loose: the conversation.
  source_id text,
  tags jsonb not null default '{}',
  metadata json, expires_at timestamptz(3), invalidated_at timestamptz(3),
  superseded_by_memory_id text references memories (id) on delete set null,
  -- Whether knowledge_vectors has the text, and the space of the last embedding, 0 for none.
  embedded boolean not null default false, space_id integer not null default 0,
  -- Consecutive failures caused by the text.
  embed_failures integer not null default 0,
  -- Null for an invalidated memory: searches find current ones.
  tsv tsvector,
  tsv_config text not null,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);
create index memories_store on memories (memory_store_id, created_at desc, id desc);
-- An expression, because `= any` finds the memories of one actor and of none in one index scan.
create index memories_owner on memories (memory_store_id, coalesce(actor_id, ''), created_at, id);
-- Equal texts in a store. Many end users submit the same one.
create index memories_hash on memories (memory_store_id, content_hash, coalesce(actor_id, '')) where invalidated_at is null;
-- Newest memories of a project: a search for a word in most of them reads this order, not the index of words.
create index memories_project on memories (project_id, id);
create index memories_tsv on memories using gin (tsv);
create index memories_tags on memories using gin (tags jsonb_path_ops);
create index memories_actor on memories (actor_id) where actor_id is not null;
create index memories_source on memories (source_id) where source_id is not null;
create index memories_superseded_by on memories (superseded_by_memory_id) where superseded_by_memory_id is not null;
-- Reads omit expired memories, also before the sweep invalidates them.
create index memories_expiring on memories (expires_at, memory_store_id)
  where invalidated_at is null and expires_at is not null;
create index memories_over on memories (project_id, expires_at) where invalidated_at is null and expires_at is not null;
-- Memories to embed.
create index memories_space on memories (space_id, id) where invalidated_at is null;
-- Tags of words in use, and the memories of a project with one of them.
create index memories_words on memories (tsv_config, project_id) where tsv is not null;

-- Maintains valid_count and marked_count.
create function count_valid_memories() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    update memory_stores s set valid_count = s.valid_count + c.count, marked_count = s.marked_count + c.marked
    from (
      select memory_store_id, count(*), count(actor_id) as marked from added where invalidated_at is null group by 1
    ) c
    where s.id = c.memory_store_id;
  elsif tg_op = 'DELETE' then
    update memory_stores s set valid_count = s.valid_count - c.count, marked_count = s.marked_count - c.marked
    from (
      select memory_store_id, count(*), count(actor_id) as marked from removed where invalidated_at is null group by 1
    ) c
    where s.id = c.memory_store_id;
  else
    update memory_stores s set valid_count = s.valid_count + c.count, marked_count = s.marked_count + c.marked
    from (
      select memory_store_id, sum(change) as count, coalesce(sum(change) filter (where actor_id is not null), 0) as marked from (
        select memory_store_id, actor_id, 1 as change from added where invalidated_at is null
        union all select memory_store_id, actor_id, -1 from removed where invalidated_at is null
      ) changes group by 1
      having sum(change) <> 0 or coalesce(sum(change) filter (where actor_id is not null), 0) <> 0
    ) c
    where s.id = c.memory_store_id;
  end if;
  return null;
end $$;
create trigger memories_counted_inserts after insert on memories referencing new table as added
  for each statement execute function count_valid_memories();
create trigger memories_counted_deletes after delete on memories referencing old table as removed
  for each statement execute function count_valid_memories();
create trigger memories_counted_updates after update on memories referencing old table as removed new table as added
  for each statement execute function count_valid_memories();

create table memory_entries (
  id text primary key,
  project_id text not null,
  memory_store_id text not null references memory_stores (id) on delete cascade,
  actor_id text, content text not null,
  action text not null check (action in ('created', 'superseded', 'skipped', 'updated')),
  memory_id text references memories (id) on delete set null,
  -- The memory that it resolved into, loose: a purge finds entries that no longer refer to a memory.
  resolved_id text,
  superseded_memory_id text,
  similarity double precision,
  declared boolean not null,
  mechanism text not null check (mechanism in ('api', 'tool', 'rule', 'orchestration', 'formation')),
  memory_rule_id text,
  -- Loose, as the following columns.
  generation_id text,
  conversation_id text,
  -- Conversation of the fact.
  source_id text,
  -- Of a node execution: its attempts submit one fact.
  attempt_key text,
  principal_type text not null, principal_id text not null,
  tags jsonb not null default '{}',
  metadata json,
  created_at timestamptz(3) not null default now()
);
create index memory_entries_store on memory_entries (memory_store_id, created_at desc, id desc);
create index memory_entries_project on memory_entries (project_id);
create index memory_entries_actor on memory_entries (actor_id) where actor_id is not null;
create index memory_entries_memory on memory_entries (memory_id, created_at desc, id desc) where memory_id is not null;
create index memory_entries_generation on memory_entries (generation_id, created_at desc, id desc)
  where generation_id is not null;
create index memory_entries_conversation on memory_entries (conversation_id, created_at desc, id desc)
  where conversation_id is not null;
create index memory_entries_source on memory_entries (source_id) where source_id is not null;
create index memory_entries_rule on memory_entries (memory_rule_id) where memory_rule_id is not null;
create unique index memory_entries_attempt on memory_entries (attempt_key) where attempt_key is not null;

-- The ledger is append-only. An entry may lose its references, becomes the entry of an end user and follows a merge of end
-- users, and is deleted with its store or its end user.
create function refuse_ledger_change() returns trigger language plpgsql as $$
begin
  if (new.memory_id is null or new.memory_id = old.memory_id)
    and (new.memory_rule_id is null or new.memory_rule_id = old.memory_rule_id)
    and (new.actor_id is not null or old.actor_id is null)
    and to_jsonb(new) - 'memory_id' - 'memory_rule_id' - 'actor_id'
      = to_jsonb(old) - 'memory_id' - 'memory_rule_id' - 'actor_id'
  then
    return new;
  end if;
  raise exception 'entries of the memory ledger are never changed';
end $$;
create trigger memory_entries_kept before update on memory_entries
  for each row execute function refuse_ledger_change();

-- Foreign keys of entries first: the deletion of a store deletes its entries first, which then need no update for its
-- memories.
alter table memories add foreign key (memory_store_id) references memory_stores (id) on delete cascade;
alter table memory_entries add foreign key (project_id) references projects (id) on delete cascade;
alter table memories add foreign key (project_id) references projects (id) on delete cascade;
