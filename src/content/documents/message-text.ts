import { createHash } from 'node:crypto'
import { z } from 'zod'
import { newId } from '../../core/api/ids.ts'
import { type Fragment, jsonb, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { fileKind } from '../files/model.ts'
import { RESERVED } from '../paths.ts'
import type { DocumentAuthor } from './model.ts'

/**
 * Texts of conversation messages: documents of the kind `message`, each behind a file, which the conversations write
 * and delete themselves. They are ready at once, without chunks, and emit no events.
 */

const id = sql.type(z.object({ id: z.string() }))
const platform: DocumentAuthor = { type: 'system', id: null }

/** The ctes that write the text of a new message: file, document, version 1 and text. */
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
      select id, version, path, chunk_strategy, text_version, ${jsonb(platform)} from message_document)`,
    sql.fragment`message_text as (
      insert into document_texts (document_id, content) select id, ${text} from message_document)`,
  ]
}

/**
 * Joins the text `x` of the document that messages `m` name: none when the document is gone, withdrawn or without a text
 * yet. By the primary keys of both tables.
 */
export const messageTextJoin: Fragment = sql.fragment`
  left join documents d on d.id = m.document_id and d.status <> 'withdrawn'
  left join document_texts x on x.document_id = d.id`

/** Whether a document is there, as a condition that holds until the transaction ends. By the primary key. */
export const documentExists = (documentId: string): Fragment =>
  sql.fragment`exists (select from documents d where d.id = ${documentId} for key share of d)`

/** Locks those among documents that are texts of messages, in one order; answers their ids. By the primary key. */
export const lockMessageTexts = (tx: Queryable, documentIds: Fragment): Promise<readonly string[]> =>
  tx.anyFirst(id`
    select d.id from documents d where d.id in (${documentIds}) and d.kind = 'message' order by d.id for update`)

/** Deletes texts of messages with their files, except those that a condition over `d.id` keeps. */
export const deleteMessageTexts = (tx: Queryable, documentIds: readonly string[], kept: Fragment) =>
  tx.query(voidStatement`
    with gone as (
      delete from documents d where d.id = any(${sql.array([...documentIds], 'text')}) and d.kind = 'message' and not ${kept}
      returning d.file_id
    )
    delete from files f using gone g where f.id = g.file_id`)
