import { essenceOf } from '../../../content/files/media-type.ts'
import { type FileRow, fileKind } from '../../../content/files/model.ts'
import { fileBytes } from '../../../content/files/read-file.ts'
import { acquireReadMemory, maxWholeRead } from '../../../content/files/read-memory.ts'
import { type Problem, raise, raiseInvalid } from '../../../core/api/errors.ts'
import type { Context } from '../../../core/api/operation.ts'
import type { Queryable } from '../../../core/db/sql.ts'
import type { Services } from '../../../core/process/services.ts'
import type { AttachedFile, ModelMessage, PromptMessage } from '../../providers/model-messages.ts'
import { findFiles } from '../store.ts'

/** What the files of a turn are sent as, by their ids, until `release` returns their memory. */
export type Attachments = { files: ReadonlyMap<string, AttachedFile>; release(): void }

/** Media types that callers may put into a message: models read them as images, audio and PDF. */
const READABLE = /^(image\/|audio\/|application\/pdf$)/

/** The file parts of messages with the path of each. */
function* fileParts(messages: readonly ModelMessage[]) {
  for (const [index, { role, content }] of messages.entries()) {
    if (role !== 'user' || typeof content === 'string') continue
    for (const [at, part] of content.entries())
      if (part.type === 'file') yield { file_id: part.file_id, path: `messages[${index}].content[${at}].file_id` }
  }
}

/** Bytes that a model is sent: a file counts as often as it is named. */
const total = (parts: readonly { file_id: string }[], files: ReadonlyMap<string, FileRow>): number =>
  parts.reduce((sum, { file_id }) => sum + (files.get(file_id)?.size ?? 0), 0)

const filesOf = async (
  db: Queryable,
  projectId: string,
  parts: readonly { file_id: string }[],
): Promise<ReadonlyMap<string, FileRow>> => {
  const files = await findFiles(db, projectId, [...new Set(parts.map(part => part.file_id))])
  return new Map(files.map(file => [file.id, file]))
}

/**
 * Lets the files that a caller's messages name into a turn, when the caller may download them and a model can be given
 * them.
 * @throws FILE_NOT_FOUND for one that is not of the project, FORBIDDEN, VALIDATION_FAILED for one without bytes or of a
 *   type that models do not read, and for more than one call may be sent (wholeLimit)
 */
export async function admitFiles(
  db: Queryable,
  { services, allow }: Pick<Context, 'services' | 'allow'>,
  projectId: string,
  messages: readonly ModelMessage[],
): Promise<void> {
  const parts = [...fileParts(messages)]
  if (parts.length === 0) return
  const files = await filesOf(db, projectId, parts)
  const lost = parts.find(({ file_id }) => !files.has(file_id))
  if (lost) raise('FILE_NOT_FOUND', { meta: { id: lost.file_id } })
  for (const row of files.values()) allow('files:DownloadFile', { kind: fileKind, row })
  const problems = parts.flatMap(({ file_id, path }): Problem[] => {
    const { storage, content_type } = files.get(file_id) as FileRow
    if (storage === null) return [{ code: 'INVALID_VALUE', path, message: 'names a file without content' }]
    if (READABLE.test(essenceOf(content_type ?? ''))) return []
    return [{ code: 'INVALID_VALUE', path, message: 'must name an image, a sound or a PDF' }]
  })
  const limit = maxWholeRead(services.config)
  if (total(parts, files) > limit)
    problems.push({ code: 'TOO_BIG', path: 'messages', message: `must hold files of at most ${limit} bytes in all` })
  if (problems.length > 0) raiseInvalid(problems)
}

/**
 * Reads the files that the messages of a turn name, in one query and one read each, when there is memory for them;
 * nothing without any.
 * @throws FILE_NOT_FOUND when one is gone or its bytes are lost, GENERATION_FAILED for more than one call may be sent,
 *   the reason of `signal`
 */
export async function readFiles(
  services: Services,
  projectId: string,
  messages: readonly ModelMessage[],
  signal: AbortSignal,
): Promise<Attachments> {
  const read = new Map<string, AttachedFile>()
  const parts = [...fileParts(messages)]
  if (parts.length === 0) return { files: read, release: () => {} }
  const files = await filesOf(services.pool, projectId, parts)
  const limit = maxWholeRead(services.config)
  const bytes = total(parts, files)
  if (bytes > limit)
    raise('GENERATION_FAILED', {
      message: `The files of the turn are larger than ${limit} bytes`,
      meta: { reason: 'files_too_large' },
    })
  const release = await acquireReadMemory(services, projectId, bytes, signal)
  try {
    for (const id of new Set(parts.map(part => part.file_id))) {
      const file = files.get(id)
      const data = file && (await fileBytes(services, file, limit))
      if (!data) return raise('FILE_NOT_FOUND', { meta: { id } })
      const media_type = essenceOf(file.content_type ?? 'application/octet-stream')
      read.set(id, { type: 'attachment', filename: file.filename, media_type, data_base64: data.toString('base64') })
    }
    return { files: read, release }
  } catch (error) {
    release()
    throw error
  }
}

/** Messages with their files, all of which were read, in place of the parts that name them. */
export const attachFiles = (messages: readonly ModelMessage[], { files }: Attachments): PromptMessage[] =>
  messages.map((message): PromptMessage => {
    if (message.role !== 'user' || typeof message.content === 'string') return message as PromptMessage
    return {
      role: 'user',
      content: message.content.map(part => (part.type === 'file' ? (files.get(part.file_id) as AttachedFile) : part)),
    }
  })
