import { createHash } from 'node:crypto'
import { newId } from '#core/base/ids.ts'
import { type Fragment, idStatement, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { fileKind } from '../files/model.ts'
import { RESERVED } from '../paths.ts'
import type { DocumentAuthor } from './model.ts'

/**
 * Texts of conversation messages: documents of kind `message`, each with a file. Only conversations write and delete
 * them. They are ready immediately, have no chunks and emit no events.
 */

const SYSTEM_AUTHOR: DocumentAuthor = { type: 'system', id: null }

/** CTEs that insert the text of a new message: file, document, version 1 and text. */
export function messageTextParts(message: {
  document_id: string
  project_id: string
  conversation_id: string
  text: string
}): Fragment[] {
  const { document_id, project_id, text } = message
  const filename = `${document_id}.txt`
  const path = `${RESERVED}/conversations/${message.conversation_id}/${filename}`
  const sha256 = createHash('sha256').update(text).digest()
  return [
    sql.fragment`message_file as (
      insert into files (id, project_id, path, filename, content_type, size, sha256, storage)
      values (${newId(fileKind.prefix)}, ${project_id}, ${path}, ${filename}, 'text/plain', ${Buffer.byteLength(text)},
        ${sql.binary(sha256)}, 'text')
      returning *)`,
    sql.fragment`message_document as (
      insert into documents (id, project_id, file_id, kind, status, text_version, path, filename, content_type, size,
        chunk_strategy, total_chunks)
      select ${document_id}, project_id, id, 'message', 'ready', 1, path, filename, content_type, size, 'whole', 0
      from message_file
      returning *)`,
    sql.fragment`message_version as (
      insert into document_versions (document_id, version, path, chunk_strategy, text_version, created_by)
      select id, version, path, chunk_strategy, text_version, ${jsonb(SYSTEM_AUTHOR)} from message_document)`,
    sql.fragment`message_text as (
      insert into document_texts (document_id, content) select id, ${text} from message_document)`,
  ]
}

/**
 * Joins the text `x` of the document of message `m`; null if the document is deleted, withdrawn or has no text yet.
 * Indexes: primary keys.
 */
export const messageTextJoin: Fragment = sql.fragment`
  left join documents d on d.id = m.document_id and d.status <> 'withdrawn'
  left join document_texts x on x.document_id = d.id`

/** Condition that a document exists; locks it against deletion until the transaction ends. Index: primary key. */
export const documentExists = (documentId: string): Fragment =>
  sql.fragment`exists (select from documents d where d.id = ${documentId} for key share of d)`

/** Locks the message texts among the given documents, in order of ID, and returns their IDs. Index: primary key. */
export const lockMessageTexts = (tx: Queryable, documentIds: Fragment): Promise<readonly string[]> =>
  tx.anyFirst(idStatement`
    select d.id from documents d where d.id in (${documentIds}) and d.kind = 'message' order by d.id for update`)

/** Deletes message texts with their files, except where the condition `isKept` over `d.id` is true. */
export const deleteMessageTexts = (tx: Queryable, documentIds: readonly string[], isKept: Fragment) =>
  tx.query(voidStatement`
    with gone as (
      delete from documents d where d.id = any(${sql.array([...documentIds], 'text')}) and d.kind = 'message' and not ${isKept}
      returning d.file_id
    )
    delete from files f using gone g where f.id = g.file_id`)
