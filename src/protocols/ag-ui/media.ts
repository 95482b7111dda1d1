import { createHash } from 'node:crypto'
import { raiseNotAccepted } from '#content/files/media.ts'
import { fetchImage } from '#content/files/media-fetch.ts'
import { cleanName } from '#content/files/media-notes.ts'
import { fileKind } from '#content/files/model.ts'
import { MAX_PARTS, type MessagePart } from '#conversation/dialog/messages/parts-model.ts'
import { isIdOf } from '#core/api/kind.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import { type ClientFile, requireFetchable, uploadClientFile } from '../upload.ts'
import type { Run } from './call.ts'
import { type ContentPart, noteOf, textOf, type UserMessage } from './input.ts'

/** Images and documents in messages of the user, which are stored as files of the platform. */

const BASE64 = /^[A-Za-z0-9+/]*={0,2}$/

/**
 * Returns the content of a message in a body: its text, or its parts if it has an image or a document. Their bytes are
 * uploaded first.
 * @throws MEDIA_NOT_ACCEPTED for a URL that may not be fetched, VALIDATION_FAILED, errors of an upload
 */
export async function messageBody(
  run: Run,
  { id, content }: UserMessage,
): Promise<{ message: string } | { parts: MessagePart[] }> {
  if (typeof content === 'string' || !content.some(isMedia)) return { message: textOf(content) }
  // Refused before a file is stored.
  if (content.filter(part => isMedia(part) || noteOf(part) !== '').length > MAX_PARTS)
    raiseInvalid({ code: 'TOO_BIG', path: 'messages', message: `must have at most ${MAX_PARTS} parts a message` })
  const parts: MessagePart[] = []
  for (const [index, part] of content.entries()) {
    if (isMedia(part)) {
      const file_id = await fileOf(run, part, JSON.stringify([run.sessionId, id, index]))
      parts.push({ type: part.type === 'image' ? 'image' : 'file', file_id })
      continue
    }
    const text = noteOf(part)
    if (text !== '') parts.push({ type: 'text', text })
  }
  return { parts }
}

type MediaPart = ContentPart & { source: NonNullable<ContentPart['source']> }

/** Whether a part is an image or a document with a source of this platform. Files of other providers are notes. */
function isMedia(part: ContentPart): part is MediaPart {
  const { type, source } = part
  if (!source || (type !== 'image' && type !== 'document')) return false
  return source.type === 'data' || source.type === 'url' || (source.type === 'file' && isIdOf(fileKind, source.value))
}

/** Returns the ID of the file of a part. @param place identifies the part in the session */
async function fileOf(run: Run, part: MediaPart, place: string): Promise<string> {
  const { source } = part
  if (source.type === 'file') return source.value
  const content = source.type === 'data' ? decode(part) : await fetchPart(run, part)
  const key = createHash('sha256').update(place).update(content.bytes).digest('hex').slice(0, 32)
  return uploadClientFile(run.request, run.request.mount.surface, content, {
    project_id: run.thread.project_id,
    directory: run.request.mount.directory,
    key,
  })
}

function decode(part: MediaPart): ClientFile {
  const { value, mimeType } = part.source
  if (mimeType == null || !BASE64.test(value))
    return raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'messages',
      message: 'must contain base64 content with a mimeType in sources of type data',
    })
  return { bytes: Buffer.from(value, 'base64'), filename: nameOf(part), content_type: mimeType }
}

async function fetchPart({ request, thread: { project_id } }: Run, part: MediaPart): Promise<ClientFile> {
  if (request.caller.end_user)
    return raiseNotAccepted(null, { reason: 'url', message: 'End users send content or file IDs, not URLs' })
  if (part.type !== 'image')
    return raiseNotAccepted(null, { reason: 'url', message: 'Only images are fetched from URLs' })
  requireFetchable(request, project_id)
  const signal = request.exchange.request.closed
  const image = await fetchImage(request.services, { url: part.source.value, project_id, signal })
  return { ...image, filename: nameOf(part) }
}

const nameOf = ({ type, metadata }: MediaPart): string => {
  const { filename } = (metadata ?? {}) as { filename?: unknown }
  return (typeof filename === 'string' && cleanName(filename)) || type
}
