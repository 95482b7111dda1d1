-- Whose a fact is: of an end user, or of nobody in particular.

-- With the end user the facts go. Their events are written by whoever deletes the actor.
alter table memories add column actor_id text references actors (id) on delete cascade;
alter table memory_entries add column actor_id text references actors (id) on delete cascade;
-- Null: the default of the platform.
alter table memory_stores
  add column actor_memory_limit integer,
  -- Of valid_count those with an actor.
  add column marked_count integer not null default 0;
-- Laid over that of the agent.
alter table sessions add column knowledge_config jsonb;

-- As an expression, because `= any` with one value for those of nobody finds the rows of both in one scan of an index.
create index memories_owner on memories (memory_store_id, coalesce(actor_id, ''), created_at, id);
-- Many end users say the same.
drop index memories_hash;
create index memories_hash on memories (memory_store_id, content_hash, coalesce(actor_id, '')) where invalidated_at is null;
create index memories_actor on memories (actor_id) where actor_id is not null;
create index memory_entries_actor on memory_entries (actor_id) where actor_id is not null;

-- Whose a row is within its container, '' for nobody's.
alter table knowledge_vectors add column owner_id text not null default '';
drop index knowledge_vectors_container;
create index knowledge_vectors_container on knowledge_vectors (container_id, owner_id);
drop index knowledge_vectors_scan;
create index knowledge_vectors_scan on knowledge_vectors (project_id, space_id, source, written_in)
  include (id, container_id, owner_id, code);

-- The ledger only grows: an entry may lose what it points to, becomes an end user's and moves with one who is merged, and goes
-- with its store or its end user.
create or replace function refuse_ledger_change() returns trigger language plpgsql as $$
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

create or replace function count_valid_memories() returns trigger language plpgsql as $$
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
      select memory_store_id, count(*), count(actor_id) as marked from gone where invalidated_at is null group by 1
    ) c
    where s.id = c.memory_store_id;
  else
    update memory_stores s set valid_count = s.valid_count + c.count, marked_count = s.marked_count + c.marked
    from (
      select memory_store_id, sum(change) as count, coalesce(sum(change) filter (where actor_id is not null), 0) as marked from (
        select memory_store_id, actor_id, 1 as change from added where invalidated_at is null
        union all select memory_store_id, actor_id, -1 from gone where invalidated_at is null
      ) changes group by 1
      having sum(change) <> 0 or coalesce(sum(change) filter (where actor_id is not null), 0) <> 0
    ) c
    where s.id = c.memory_store_id;
  end if;
  return null;
end $$;
