-- breaking: false

-- Most memories have no tags: each would write 190 bytes of WAL for an entry that no query reads. Lists by tags say that a
-- memory has tags (hasTags in memory/facts/model.ts); lists of an earlier release read the store instead.
drop index memories_tags;
create index memories_tags on memories using gin (tags jsonb_path_ops) where tags <> '{}';
