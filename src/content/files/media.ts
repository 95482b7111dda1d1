import { fileTypeFromBuffer } from 'file-type'
import { raise } from '#core/base/errors.ts'
import { type Header, type HeaderScan, type Pieces, scanHeader } from './media-header.ts'
import { scanGif, scanJpeg, scanPng, scanWebp } from './media-images.ts'
import { MAX_FRAMES, MAX_PIXELS, MAX_SIDE } from './media-limits.ts'
import { essenceOf } from './media-type.ts'

/** Scans of the header of each type of image. */
export const IMAGE_SCANS: Record<string, () => HeaderScan> = {
  'image/png': scanPng,
  'image/jpeg': scanJpeg,
  'image/webp': scanWebp,
  'image/gif': scanGif,
}

/** Media types of images that messages may contain. */
export const IMAGE_TYPES = Object.keys(IMAGE_SCANS)
export const PDF = 'application/pdf'

/** What a model must be able to take for a file; `text` for files of which it gets the text. */
export type MediaInput = 'image' | 'pdf' | 'audio' | 'text'

/** Returns the input that a content type requires; null for an image type that is not accepted. */
export function mediaInput(contentType: string | null): MediaInput | null {
  const type = essenceOf(contentType ?? '')
  if (type.startsWith('image/')) return IMAGE_TYPES.includes(type) ? 'image' : null
  if (type.startsWith('audio/')) return 'audio'
  return type === PDF ? 'pdf' : 'text'
}

/** Why media are not accepted. */
export type MediaReason = 'type' | 'content' | 'dimensions' | 'frames' | 'pages' | 'size' | 'count' | 'model' | 'url'

export type MediaProblem = { reason: MediaReason; message: string }

/** Raises MEDIA_NOT_ACCEPTED. */
export const raiseNotAccepted = (fileId: string | null, { reason, message }: MediaProblem): never =>
  raise('MEDIA_NOT_ACCEPTED', { message, meta: { file_id: fileId, reason } })

/** First bytes by which the type of a file is detected. */
const HEAD_BYTES = 4100

/**
 * Returns why a file is not accepted, or null. Its first bytes must agree with its content type, and an image must have
 * allowed dimensions. Reads the header of an image, the block structure of a GIF, and the first bytes of other files;
 * nothing is decoded.
 */
export async function mediaProblem(contentType: string | null, pieces: Pieces): Promise<MediaProblem | null> {
  const type = essenceOf(contentType ?? '')
  const input = mediaInput(contentType)
  if (input === null)
    return { reason: 'type', message: `Images of type ${type} are not accepted, only ${IMAGE_TYPES.join(', ')}` }
  if (input === 'image') return headerProblem(type, await scanHeader(pieces, IMAGE_SCANS[type]()))
  const head = await readHead(pieces)
  return (await agrees(input, type, head)) ? null : disagreement(type)
}

const disagreement = (type: string): MediaProblem => ({
  reason: 'content',
  message: `The content of the file is not ${type}`,
})

function headerProblem(type: string, header: Header | null): MediaProblem | null {
  if (header === null) return disagreement(type)
  const { width, height, frames } = header
  if (width < 1 || height < 1 || width > MAX_SIDE || height > MAX_SIDE || width * height > MAX_PIXELS)
    return {
      reason: 'dimensions',
      message: `The image has ${width} × ${height} pixels; at most ${MAX_SIDE} a side and ${MAX_PIXELS} in total are accepted`,
    }
  if (frames > MAX_FRAMES) return { reason: 'frames', message: `The image has more than ${MAX_FRAMES} frames` }
  return null
}

async function readHead(pieces: Pieces): Promise<Buffer> {
  const read: Uint8Array[] = []
  let length = 0
  for await (const piece of pieces) {
    read.push(piece.subarray(0, HEAD_BYTES - length))
    length += read[read.length - 1].length
    if (length >= HEAD_BYTES) break
  }
  return Buffer.concat(read)
}

/** Formats that contain sound; recordings of browsers are detected as videos. */
const SOUND = /^(audio|video)\/|^application\/ogg$/
/** Formats that are texts. */
const TEXT = /[/+](xml|rtf|vcard|calendar)$/

/** Whether the first bytes of a file can belong to its type. */
async function agrees(input: Exclude<MediaInput, 'image'>, type: string, head: Buffer): Promise<boolean> {
  if (input === 'pdf') return head.subarray(0, 5).equals(Buffer.from('%PDF-'))
  const detected = (await fileTypeFromBuffer(head))?.mime ?? null
  if (input === 'audio') return detected === null || SOUND.test(detected)
  if (!type.startsWith('text/')) return true
  const isUtf16 = head[0] + head[1] === 0xfe + 0xff
  return (detected === null || TEXT.test(detected)) && (isUtf16 || !head.includes(0))
}
