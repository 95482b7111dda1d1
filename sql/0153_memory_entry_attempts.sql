-- An attempt of a node of a run states one fact, however often it is made.
alter table memory_entries add column attempt_key text;
create unique index memory_entries_attempt on memory_entries (attempt_key) where attempt_key is not null;
