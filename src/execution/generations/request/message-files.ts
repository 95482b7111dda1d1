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

/** Attachments of a turn by file id; `release` frees their memory. */
export type Attachments = { files: ReadonlyMap<string, AttachedFile>; release(): void }

/** Media types that models accept: images, audio and PDF. */
const READABLE = /^(image\/|audio\/|application\/pdf$)/

/** Yields the file parts of messages with the path of each. */
function* fileParts(messages: readonly ModelMessage[]) {
  for (const [index, { role, content }] of messages.entries()) {
    if (role !== 'user' || typeof content === 'string') continue
    for (const [at, part] of content.entries())
      if (part.type === 'file') yield { file_id: part.file_id, path: `messages[${index}].content[${at}].file_id` }
  }
}

/** Returns the bytes sent to a model, each file counted per occurrence. */
const totalBytes = (parts: readonly { file_id: string }[], files: ReadonlyMap<string, FileRow>): number =>
  parts.reduce((sum, { file_id }) => sum + (files.get(file_id)?.size ?? 0), 0)

const findFilesById = async (
  db: Queryable,
  projectId: string,
  parts: readonly { file_id: string }[],
): Promise<ReadonlyMap<string, FileRow>> => {
  const files = await findFiles(db, projectId, [...new Set(parts.map(part => part.file_id))])
  return new Map(files.map(file => [file.id, file]))
}

/**
 * Checks that the caller may download the files of its messages and that models accept them.
 * @throws FILE_NOT_FOUND for a file outside the project, FORBIDDEN, VALIDATION_FAILED for a file without bytes or of an
 *   unsupported type, and for more bytes than one model call may have (maxWholeRead)
 */
export async function admitFiles(
  db: Queryable,
  { services, allow }: Pick<Context, 'services' | 'allow'>,
  projectId: string,
  messages: readonly ModelMessage[],
): Promise<void> {
  const parts = [...fileParts(messages)]
  if (parts.length === 0) return
  const files = await findFilesById(db, projectId, parts)
  const missing = parts.find(({ file_id }) => !files.has(file_id))
  if (missing) raise('FILE_NOT_FOUND', { meta: { id: missing.file_id } })
  for (const row of files.values()) allow('files:DownloadFile', { kind: fileKind, row })
  const problems = parts.flatMap(({ file_id, path }): Problem[] => {
    const { storage, content_type } = files.get(file_id) as FileRow
    if (storage === null) return [{ code: 'INVALID_VALUE', path, message: 'refers to a file without content' }]
    if (READABLE.test(essenceOf(content_type ?? ''))) return []
    return [{ code: 'INVALID_VALUE', path, message: 'must refer to an image, audio or PDF file' }]
  })
  const limit = maxWholeRead(services.config)
  if (totalBytes(parts, files) > limit)
    problems.push({
      code: 'TOO_BIG',
      path: 'messages',
      message: `must refer to files of at most ${limit} bytes in total`,
    })
  if (problems.length > 0) raiseInvalid(problems)
}

/**
 * Reads the files of a turn's messages, with one query and one read per file, once memory for them is available.
 * @throws FILE_NOT_FOUND for a deleted file or lost bytes, GENERATION_FAILED for more bytes than one model call may
 *   have, the reason of `signal`
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
  const files = await findFilesById(services.pool, projectId, parts)
  const limit = maxWholeRead(services.config)
  const bytes = totalBytes(parts, files)
  if (bytes > limit)
    raise('GENERATION_FAILED', {
      message: `The files of the turn exceed ${limit} bytes`,
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

/** Returns messages with attachments in place of their file parts. */
export const attachFiles = (messages: readonly ModelMessage[], { files }: Attachments): PromptMessage[] =>
  messages.map((message): PromptMessage => {
    if (message.role !== 'user' || typeof message.content === 'string') return message as PromptMessage
    return {
      role: 'user',
      content: message.content.map(part => (part.type === 'file' ? (files.get(part.file_id) as AttachedFile) : part)),
    }
  })
