-- The text of a conversation message is a document, with a file behind it.

-- One row a text that a message uses: ids of files follow those of documents, and the oldest of the conversations that
-- share a text is the one it was written in. A text that was purged has nothing to keep.
create temporary table moved on commit drop as
  select x.document_id, 'file_' || substr(x.document_id, length('doc_') + 1) as file_id, x.project_id, x.content, x.created_at,
    '/.system/conversations/' || min(m.conversation_id) || '/' || x.document_id || '.txt' as path
  from message_texts x join conversation_messages m on m.document_id = x.document_id
  where x.content is not null
  group by x.document_id;

insert into files (id, project_id, path, filename, content_type, size, sha256, storage, created_at, updated_at)
  select file_id, project_id, path, document_id || '.txt', 'text/plain', octet_length(content),
    sha256(convert_to(content, 'UTF8')), 'text', created_at, created_at
  from moved;

insert into documents (id, project_id, file_id, kind, status, text_version, path, filename, content_type, size,
    chunk_strategy, total_chunks, created_at, updated_at)
  select document_id, project_id, file_id, 'message', 'ready', 1, path, document_id || '.txt', 'text/plain',
    octet_length(content), 'whole', 0, created_at, created_at
  from moved;

insert into document_versions (document_id, version, path, chunk_strategy, text_version, created_by, created_at)
  select document_id, 1, path, 'whole', 1, '{"type": "system", "id": null}', created_at from moved;

insert into document_texts (document_id, content) select document_id, content from moved;

drop table message_texts;
