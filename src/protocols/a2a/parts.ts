import { fetchImage } from '#content/files/media-fetch.ts'
import { cleanName } from '#content/files/media-notes.ts'
import type { MessagePart } from '#conversation/dialog/messages/parts-model.ts'
import { requireFetchable, uploadClientFile } from '../upload.ts'
import { refuse } from './fault.ts'
import type { A2aRequest } from './target.ts'
import { MAX_FILE_BYTES, type Message, type Part } from './wire.ts'

/** Contents of messages. */

const BASE64 = /^[A-Za-z0-9+/_-]*={0,2}$/

/** Returns the text of a part: its text, or its data as JSON; null for a file. */
const textOfPart = ({ text, data }: Part): string | null => text ?? (data === undefined ? null : JSON.stringify(data))

/** Returns the texts of the parts, separated by a blank line. */
export const textOf = ({ parts }: Message): string => parts.flatMap(({ text }) => text ?? []).join('\n\n')

/** Returns the data of the only data part, or undefined. @throws INVALID_PARAMS for several */
export function dataOf({ parts }: Message): unknown {
  const data = parts.filter(part => part.data !== undefined)
  if (data.length > 1) refuse('INVALID_PARAMS', 'The message must have at most one data part')
  return data[0]?.data
}

/** Refuses files, for receivers of texts and data only. @throws CONTENT_TYPE_NOT_SUPPORTED */
export function requireNoFiles({ parts }: Message): void {
  if (parts.some(part => textOfPart(part) === null))
    refuse('CONTENT_TYPE_NOT_SUPPORTED', 'Files are not accepted here, only texts and data')
}

/**
 * Returns the body of a session message with the parts of a message. Files are stored first; a file named by a URL must be
 * an image.
 * @param key identifies the message, so that a repeat stores no further files
 * @throws MEDIA_NOT_ACCEPTED, CONTENT_TYPE_NOT_SUPPORTED, errors of an upload
 */
export async function messageBody(
  request: A2aRequest,
  { parts }: Message,
  key: string,
): Promise<{ message: string } | { parts: MessagePart[] }> {
  const texts = parts.map(textOfPart)
  if (texts.every(text => text !== null)) {
    const message = texts.filter(text => text !== '').join('\n\n')
    return message === '' ? refuse('INVALID_PARAMS', 'The message has no content') : { message }
  }
  const stored: MessagePart[] = []
  for (const [index, part] of parts.entries()) {
    const text = textOfPart(part)
    if (text !== null) {
      if (text !== '') stored.push({ type: 'text', text })
      continue
    }
    const { bytes, content_type } = part.url === undefined ? decode(part) : await fetchPart(request, part.url)
    const name = cleanName(part.filename ?? '') || 'file'
    const target = { project_id: request.project_id, directory: '/a2a', key: `${key}-${index}` }
    const file_id = await uploadClientFile(request, 'a2a', { bytes, content_type, filename: name }, target)
    stored.push({ type: content_type.startsWith('image/') ? 'image' : 'file', file_id })
  }
  return { parts: stored }
}

function decode({ raw = '', mediaType }: Part): { bytes: Buffer; content_type: string } {
  if (!BASE64.test(raw)) refuse('INVALID_PARAMS', 'A raw part must be base64')
  if (!mediaType) refuse('CONTENT_TYPE_NOT_SUPPORTED', 'A raw part must have a mediaType')
  const bytes = Buffer.from(raw, 'base64')
  if (bytes.length > MAX_FILE_BYTES) refuse('INVALID_PARAMS', `A raw part must be at most ${MAX_FILE_BYTES} bytes`)
  return { bytes, content_type: mediaType as string }
}

/** Fetches the image of a URL under the egress rule. @throws FORBIDDEN */
function fetchPart(request: A2aRequest, url: string) {
  const { services, project_id, exchange } = request
  requireFetchable(request, project_id)
  return fetchImage(services, { url, project_id, signal: exchange.request.closed })
}
