import { documentKind } from '#content/documents/model.ts'
import { listDocumentTexts } from '#content/documents/store.ts'
import { isIdOf } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { FilePart, ModelMessage, TextPart } from '#execution/providers/model-messages.ts'

/** A document of the project in place of a text. */
export type DocumentPart = { type: 'document'; document_id: string }

/** A message of a caller. */
export type SentMessage = {
  role: 'user' | 'assistant'
  content: string | DocumentPart | (TextPart | FilePart | DocumentPart)[]
}

/** A message whose documents have not been read. */
export type UnresolvedMessage = SentMessage | ModelMessage

/** Yields the documents of messages with the path of each. */
function* documentParts(messages: readonly UnresolvedMessage[]) {
  for (const [index, { content }] of messages.entries()) {
    if (typeof content === 'string') continue
    const path = `messages[${index}].content`
    if (!Array.isArray(content)) yield { id: content.document_id, path: `${path}.document_id` }
    else
      for (const [at, part] of content.entries())
        if (part.type === 'document') yield { id: part.document_id, path: `${path}[${at}].document_id` }
  }
}

/**
 * Returns messages with the current texts of their documents; one statement, or none without documents.
 * @throws RESOURCE_NOT_FOUND for a document outside the project, FORBIDDEN, VALIDATION_FAILED for a document without
 *   text and for more than `maxBytes` of text in total, each document counted per occurrence
 */
export async function resolveDocuments(
  db: Queryable,
  allow: Context['allow'],
  projectId: string,
  messages: readonly UnresolvedMessage[],
  maxBytes: number,
): Promise<ModelMessage[]> {
  const parts = [...documentParts(messages)]
  if (parts.length === 0) return messages as readonly ModelMessage[] as ModelMessage[]
  const ids = [...new Set(parts.map(({ id }) => id))].filter(id => isIdOf(documentKind, id))
  const documents = new Map((await listDocumentTexts(db, projectId, ids, maxBytes)).map(row => [row.id, row]))
  const missing = parts.find(({ id }) => !documents.has(id))
  if (missing) raise(documentKind.notFound, { meta: { id: missing.id } })
  for (const row of documents.values()) allow('documents:GetDocument', { kind: documentKind, row })
  const empty = parts.filter(({ id }) => !documents.get(id)?.bytes)
  if (empty.length > 0)
    raiseInvalid(
      empty.map(({ id, path }) => {
        const message = `has no text (status ${documents.get(id)?.status})`
        return { code: 'INVALID_STATE', path, message }
      }),
    )
  const total = parts.reduce((sum, { id }) => sum + (documents.get(id)?.bytes ?? 0), 0)
  if (total > maxBytes)
    raiseInvalid({
      code: 'TOO_BIG',
      path: 'messages',
      message: `must refer to documents of at most ${maxBytes} bytes in total`,
    })
  const textOf = ({ document_id }: DocumentPart) => documents.get(document_id)?.content as string
  return messages.map((message): ModelMessage => {
    const { role, content } = message
    if (typeof content === 'string') return message as ModelMessage
    if (!Array.isArray(content)) return { role, content: textOf(content) } as ModelMessage
    const read = content.map(part => (part.type === 'document' ? { type: 'text' as const, text: textOf(part) } : part))
    return { role, content: read } as ModelMessage
  })
}
