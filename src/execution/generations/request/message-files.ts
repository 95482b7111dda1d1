import { mediaInput } from '#content/files/media.ts'
import { essenceOf } from '#content/files/media-type.ts'
import { type FileRow, fileKind } from '#content/files/model.ts'
import { fileBytes, referencedChunks } from '#content/files/read-file.ts'
import { acquireReadMemory, maxWholeRead } from '#content/files/read-memory.ts'
import type { Context } from '#core/api/operation.ts'
import { type Problem, raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import type {
  AttachedFile,
  FilePart,
  MessageMedia,
  ModelMessage,
  PromptMessage,
  TextPart,
} from '#execution/providers/model-messages.ts'
import { findFiles } from '../store.ts'
import {
  currentMedia,
  fallbackText,
  type MediaFile,
  type MediaHandling,
  type MediaPart,
  mayTake,
  needsBytes,
  noteOf,
} from './message-media.ts'

/** What a model gets for the file parts of a turn; `release` frees the memory. */
export type Attachments = { parts: ReadonlyMap<FilePart | AttachedFile, AttachedFile | TextPart>; release(): void }

/** Media types that models accept: images, audio and PDF. */
const READABLE = /^(image\/|audio\/|application\/pdf$)/

/** Yields the file parts of messages with the path of each. */
function* fileParts(messages: readonly ModelMessage[]) {
  for (const [index, { role, content }] of messages.entries()) {
    if (role !== 'user' || typeof content === 'string') continue
    for (const [at, part] of content.entries())
      if (part.type === 'file') yield { part, path: `messages[${index}].content[${at}].file_id` }
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
  const parts = [...fileParts(messages)].map(({ part: { file_id }, path }) => ({ file_id, path }))
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

/** Yields the attachments of messages that are handled like files of conversation messages. */
function* attachedMedia(messages: readonly ModelMessage[]): Generator<AttachedFile & { media: MessageMedia }> {
  for (const { role, content } of messages) {
    if (role !== 'user' || typeof content === 'string') continue
    for (const part of content)
      if (part.type === 'attachment' && part.media) yield part as AttachedFile & { media: MessageMedia }
  }
}

/** Returns the size of an attachment in bytes. */
export const attachedBytes = ({ data_base64 }: AttachedFile): number => Buffer.byteLength(data_base64, 'base64')

const PIECE_CHARS = 65_536

/** Yields the bytes of an attachment. */
export async function* attachedPieces({ data_base64 }: AttachedFile): AsyncGenerator<Buffer> {
  for (let at = 0; at < data_base64.length; at += PIECE_CHARS)
    yield Buffer.from(data_base64.slice(at, at + PIECE_CHARS), 'base64')
}

/** Returns the file of an attachment, with an ID that is unique in the turn. */
const attachedFileOf = (part: AttachedFile, project_id: string, index: number): MediaFile => ({
  id: `attachment-${index + 1}`,
  project_id,
  filename: part.filename,
  content_type: part.media_type,
  size: attachedBytes(part),
  pieces: () => attachedPieces(part),
})

/**
 * Reads the files of a turn's messages, with one query and one read per file, once memory for them is available. Files
 * of conversation messages are read for the newest turns only, as far as they fit, and if a model may take them.
 * @throws FILE_NOT_FOUND for a deleted file or lost bytes, GENERATION_FAILED for more bytes than one model call may
 *   have, MEDIA_NOT_ACCEPTED, the reason of `signal`
 */
export async function readFiles(
  services: Services,
  projectId: string,
  messages: readonly ModelMessage[],
  signal: AbortSignal,
  handling: MediaHandling,
): Promise<Attachments> {
  const read = new Map<FilePart | AttachedFile, AttachedFile | TextPart>()
  const parts = [...fileParts(messages)].map(({ part }) => part)
  const attachments = [...attachedMedia(messages)]
  if (parts.length + attachments.length === 0) return { parts: read, release: () => {} }
  const files = parts.length === 0 ? new Map() : await findFilesById(services.pool, projectId, parts)
  const requested = parts.filter(part => part.media === undefined)
  const limit = maxWholeRead(services.config)
  let bytes = totalBytes(requested, files)
  if (bytes > limit)
    raise('GENERATION_FAILED', {
      message: `The files of the turn exceed ${limit} bytes`,
      meta: { reason: 'files_too_large' },
    })
  const fileOf = (part: MediaPart): MediaFile | undefined => {
    if (part.type === 'attachment') return attachedFileOf(part, projectId, attachments.indexOf(part))
    const row = files.get(part.file_id)
    return row && { ...row, pieces: () => referencedChunks(services, row) }
  }
  const media: { part: MediaPart; file: MediaFile }[] = []
  for (const part of currentMedia(messages, handling.rules)) {
    const file = fileOf(part)
    if (!file) return raise('FILE_NOT_FOUND', { meta: { id: (part as FilePart).file_id } })
    const size = needsBytes(handling, part, file) ? (file.size ?? 0) : 0
    if (bytes + size > limit) break
    bytes += size
    media.push({ part, file })
  }
  const release = await acquireReadMemory(services, projectId, bytes, signal)
  try {
    const contents = new Map<string, AttachedFile>()
    const contentOf = async (id: string): Promise<AttachedFile> => {
      const known = contents.get(id)
      if (known) return known
      const file = files.get(id)
      const data = file && (await fileBytes(services, file, limit))
      if (!data) return raise('FILE_NOT_FOUND', { meta: { id } })
      const media_type = essenceOf(file.content_type ?? 'application/octet-stream')
      const content: AttachedFile = {
        type: 'attachment',
        filename: file.filename,
        media_type,
        data_base64: data.toString('base64'),
      }
      contents.set(id, content)
      return content
    }
    for (const part of requested) read.set(part, await contentOf(part.file_id))
    for (const { part, file } of media) {
      const attached = needsBytes(handling, part, file)
        ? {
            ...(part.type === 'attachment' ? withoutMedia(part) : await contentOf(file.id)),
            filename: neutralName(file),
          }
        : undefined
      const input = mediaInput(file.content_type)
      const text = once(() => fallbackText(services, handling, { part, file, attached }, signal))
      read.set(
        part,
        attached && input !== null && mayTake(handling.models, input)
          ? { ...attached, fallback: { input, text } }
          : { type: 'text', text: await text() },
      )
    }
    for (const part of [...parts.filter(isConversationMedia), ...attachments])
      if (!read.has(part)) read.set(part, { type: 'text', text: noteOf(part, fileOf(part)) })
    return { parts: read, release }
  } catch (error) {
    release()
    throw error
  }
}

const isConversationMedia = (part: FilePart): part is FilePart & { media: MessageMedia } => part.media !== undefined

const withoutMedia = ({ media: _, ...part }: AttachedFile): AttachedFile => part

/** Returns a name for a file of an end user, whose own name a vendor may pass to the model as text. */
const neutralName = ({ id, content_type }: MediaFile): string =>
  `${id}.${essenceOf(content_type ?? '').replace(/^.*\//, '')}`

/** Returns a function that calls `work` once. */
const once = <T>(work: () => Promise<T>): (() => Promise<T>) => {
  let result: Promise<T> | undefined
  return () => {
    result ??= work()
    return result
  }
}

/** Returns messages with attachments or texts in place of their file parts. */
export const attachFiles = (messages: readonly ModelMessage[], { parts }: Attachments): PromptMessage[] =>
  messages.map((message): PromptMessage => {
    if (message.role !== 'user' || typeof message.content === 'string') return message as PromptMessage
    return {
      role: 'user',
      content: message.content.map(part => (part.type === 'text' ? part : (parts.get(part) ?? (part as AttachedFile)))),
    }
  })
