-- What was stated in conversations of an end user is found again when that is erased: also what was known already, and what
-- has lost its memory.

alter table memory_entries
  -- The conversation that a claim comes from. Loose.
  add column source_id text,
  -- The memory that it resolved into, whatever became of that.
  add column resolved_id text;

alter table memory_entries disable trigger memory_entries_kept;
update memory_entries e set resolved_id = e.memory_id, source_id = coalesce(e.conversation_id, (
  select m.source_id from memories m where m.id = e.memory_id and e.action <> 'skipped'))
where e.memory_id is not null or e.conversation_id is not null;
alter table memory_entries enable trigger memory_entries_kept;

create index memory_entries_source on memory_entries (source_id) where source_id is not null;
