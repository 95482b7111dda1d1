-- Memory: stores of facts, the facts, and the ledger of what was stated.

create table memory_stores (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  name text not null,
  description text,
  tags jsonb not null default '{}',
  duplicate_threshold double precision,
  supersede_threshold double precision,
  -- Memories that are not invalidated, kept by triggers; those whose time is over count until a sweep has seen them.
  valid_count integer not null default 0,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
) with (fillfactor = 70);
create index memory_stores_project on memory_stores (project_id, created_at desc, id desc);
create index memory_stores_tags on memory_stores using gin (tags jsonb_path_ops);

create table memories (
  id text primary key,
  project_id text not null,
  memory_store_id text not null,
  content text not null,
  -- SHA-256 of the text in NFC with every run of whitespace as one space: what counts as the same text.
  content_hash bytea not null,
  source_type text not null check (source_type in ('manual', 'conversation')),
  -- Loose: a memory outlives the conversation that it comes from.
  source_id text,
  tags jsonb not null default '{}',
  -- json, not jsonb: what a caller wrote comes back with its keys in their order.
  metadata json,
  expires_at timestamptz(3),
  invalidated_at timestamptz(3),
  superseded_by_memory_id text references memories (id) on delete set null,
  -- Whether knowledge_vectors holds the text, and the space it was last embedded for, 0 for none.
  embedded boolean not null default false,
  space_id integer not null default 0,
  -- Tries in a row that failed for what the text says.
  embed_failures integer not null default 0,
  -- Null once the memory no longer holds: words find what holds.
  tsv tsvector,
  tsv_config text not null,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);

create table memory_entries (
  id text primary key,
  project_id text not null,
  memory_store_id text not null references memory_stores (id) on delete cascade,
  content text not null,
  action text not null check (action in ('created', 'superseded', 'skipped', 'updated')),
  memory_id text references memories (id) on delete set null,
  -- Loose, as everything below: the ledger says what was, whatever became of it.
  superseded_memory_id text,
  similarity double precision,
  declared boolean not null,
  mechanism text not null check (mechanism in ('api', 'tool', 'rule', 'orchestration', 'formation')),
  memory_rule_id text,
  generation_id text,
  conversation_id text,
  principal_type text not null,
  principal_id text not null,
  tags jsonb not null default '{}',
  metadata json,
  created_at timestamptz(3) not null default now()
);

-- After those of the entries: a store that is deleted takes its entries first, which then need not let go of its memories.
alter table memories add foreign key (memory_store_id) references memory_stores (id) on delete cascade;
alter table memory_entries add foreign key (project_id) references projects (id) on delete cascade;
alter table memories add foreign key (project_id) references projects (id) on delete cascade;

create index memories_store on memories (memory_store_id, created_at desc, id desc);
-- The same text in a store.
create index memories_hash on memories (memory_store_id, content_hash) where invalidated_at is null;
-- The newest of a project: a word that most of them hold is looked for in this order, not in the index of words.
create index memories_project on memories (project_id, id);
create index memories_tsv on memories using gin (tsv);
create index memories_tags on memories using gin (tags jsonb_path_ops);
create index memories_superseded_by on memories (superseded_by_memory_id) where superseded_by_memory_id is not null;
-- Those with a term: what is over is left out of everything, also before the sweep has seen it.
create index memories_expiring on memories (expires_at, memory_store_id)
  where invalidated_at is null and expires_at is not null;
create index memories_source on memories (source_id) where source_id is not null;
create index memories_over on memories (project_id, expires_at) where invalidated_at is null and expires_at is not null;
-- What is to be embedded, or to get other words.
create index memories_space on memories (space_id, id) where invalidated_at is null;
create index memories_config on memories (tsv_config, id) where tsv is not null;

create index memory_entries_store on memory_entries (memory_store_id, created_at desc, id desc);
create index memory_entries_memory on memory_entries (memory_id, created_at desc, id desc) where memory_id is not null;
create index memory_entries_generation on memory_entries (generation_id, created_at desc, id desc)
  where generation_id is not null;
create index memory_entries_conversation on memory_entries (conversation_id, created_at desc, id desc)
  where conversation_id is not null;
create index memory_entries_rule on memory_entries (memory_rule_id) where memory_rule_id is not null;

-- The ledger only grows: an entry may lose what it points to, and goes with its store.
create function refuse_ledger_change() returns trigger language plpgsql as $$
begin
  if (new.memory_id is null or new.memory_id = old.memory_id)
    and (new.memory_rule_id is null or new.memory_rule_id = old.memory_rule_id)
    and to_jsonb(new) - 'memory_id' - 'memory_rule_id' = to_jsonb(old) - 'memory_id' - 'memory_rule_id'
  then
    return new;
  end if;
  raise exception 'entries of the memory ledger are never changed';
end $$;
create trigger memory_entries_kept before update on memory_entries
  for each row execute function refuse_ledger_change();

create function count_valid_memories() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    update memory_stores s set valid_count = s.valid_count + c.count
    from (select memory_store_id, count(*) from added where invalidated_at is null group by 1) c
    where s.id = c.memory_store_id;
  elsif tg_op = 'DELETE' then
    update memory_stores s set valid_count = s.valid_count - c.count
    from (select memory_store_id, count(*) from gone where invalidated_at is null group by 1) c
    where s.id = c.memory_store_id;
  else
    update memory_stores s set valid_count = s.valid_count + c.count
    from (
      select memory_store_id, sum(change) as count from (
        select memory_store_id, 1 as change from added where invalidated_at is null
        union all select memory_store_id, -1 from gone where invalidated_at is null
      ) changes group by 1 having sum(change) <> 0
    ) c
    where s.id = c.memory_store_id;
  end if;
  return null;
end $$;
create trigger memories_counted_inserts after insert on memories referencing new table as added
  for each statement execute function count_valid_memories();
create trigger memories_counted_deletes after delete on memories referencing old table as gone
  for each statement execute function count_valid_memories();
create trigger memories_counted_updates after update on memories referencing old table as gone new table as added
  for each statement execute function count_valid_memories();
