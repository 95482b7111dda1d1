-- Images, files and documents of messages.

-- Parts as sent; the text form of the message is its text as before. Descriptions of images, by file ID, for models that
-- take no images.
alter table conversation_messages add column parts jsonb, add column media_descriptions jsonb,
  -- Files of the parts, loose: a file that a purge deletes leaves its ID.
  add column file_ids text[];
create index conversation_messages_files on conversation_messages using gin (file_ids) where file_ids is not null;

-- How turns of an agent handle images and files of messages; null for the defaults.
alter table agents add column media jsonb;

-- End user who uploaded the file.
alter table files add column actor_id text references actors (id) on delete set null;
create index files_actor on files (actor_id) where actor_id is not null;
