import { findTexts } from '../../../content/documents/document-texts.ts'
import { documentKind } from '../../../content/documents/model.ts'
import { raise, raiseInvalid } from '../../../core/api/errors.ts'
import { isIdOf } from '../../../core/api/kind.ts'
import type { Context } from '../../../core/api/operation.ts'
import type { Queryable } from '../../../core/db/sql.ts'
import type { FilePart, ModelMessage, TextPart } from '../../providers/model-messages.ts'

/** The text of a document of the project, in the place of a text. */
export type DocumentPart = { type: 'document'; document_id: string }

/** A message as a caller sends it. */
export type SentMessage = {
  role: 'user' | 'assistant'
  content: string | DocumentPart | (TextPart | FilePart | DocumentPart)[]
}

/** A message whose documents are not read yet, or one that names none. */
export type OpenMessage = SentMessage | Exclude<ModelMessage, { role: 'user' }>

/** The documents that messages name with the path of each. */
function* documentParts(messages: readonly OpenMessage[]) {
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
 * Messages with the texts of the documents that they name, as they are now; one statement, none without documents.
 * @throws RESOURCE_NOT_FOUND for one that is not of the project, FORBIDDEN, VALIDATION_FAILED for one without a text and
 *   for more than `maxBytes` of texts in all, each counted as often as it is named
 */
export async function withDocuments(
  db: Queryable,
  allow: Context['allow'],
  projectId: string,
  messages: readonly OpenMessage[],
  maxBytes: number,
): Promise<ModelMessage[]> {
  const parts = [...documentParts(messages)]
  if (parts.length === 0) return messages as readonly ModelMessage[] as ModelMessage[]
  const ids = [...new Set(parts.map(({ id }) => id))].filter(id => isIdOf(documentKind, id))
  const documents = new Map((await findTexts(db, projectId, ids, maxBytes)).map(row => [row.id, row]))
  const lost = parts.find(({ id }) => !documents.has(id))
  if (lost) raise(documentKind.notFound, { meta: { id: lost.id } })
  for (const row of documents.values()) allow('documents:GetDocument', { kind: documentKind, row })
  const empty = parts.filter(({ id }) => !documents.get(id)?.bytes)
  if (empty.length > 0)
    raiseInvalid(
      empty.map(({ id, path }) => {
        const message = `names a document without text (${documents.get(id)?.status})`
        return { code: 'INVALID_STATE', path, message }
      }),
    )
  const total = parts.reduce((sum, { id }) => sum + (documents.get(id)?.bytes ?? 0), 0)
  if (total > maxBytes)
    raiseInvalid({
      code: 'TOO_BIG',
      path: 'messages',
      message: `must name documents of at most ${maxBytes} bytes in all`,
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
