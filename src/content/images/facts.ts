import { fileTypeFromBuffer } from 'file-type'
import { IMAGE_SCANS } from '../files/media.ts'
import { scanHeader } from '../files/media-header.ts'

/**
 * What the bytes of an image say. Sides are null for types that are only read when they are converted. `isComplete`: whether
 * its end is there, as far as the format marks it.
 */
export type ImageFacts = {
  media_type: string
  bytes: number
  width: number | null
  height: number | null
  frames: number
  isComplete: boolean
}

/** Characters of the head by which the type is detected, and of the tail with the mark of the end; multiples of 4. */
const HEAD = 5600
const TAIL = 65_536
const PIECE = 65_536

/** Marks at the end of a file; padding may follow. */
const ENDS: Record<string, Buffer> = { 'image/png': Buffer.from('IEND'), 'image/jpeg': Buffer.from('ffd9', 'hex') }

/** Returns what an image in base64 is, whatever its declared type; null if it is no image or its header is damaged. */
export async function imageFacts(base64: string): Promise<ImageFacts | null> {
  const media_type = await imageType(Buffer.from(base64.slice(0, HEAD), 'base64'))
  if (media_type === null) return null
  const bytes = Buffer.byteLength(base64, 'base64')
  const scan = IMAGE_SCANS[media_type]
  if (!scan) return { media_type, bytes, width: null, height: null, frames: 1, isComplete: true }
  const header = await scanHeader(pieces(base64), scan())
  if (!header || header.width < 1 || header.height < 1) return null
  return { media_type, bytes, ...header, isComplete: isComplete(media_type, base64, bytes) }
}

function* pieces(base64: string): Generator<Buffer> {
  for (let at = 0; at < base64.length; at += PIECE) yield Buffer.from(base64.slice(at, at + PIECE), 'base64')
}

const TIFF = new Set(['II*\0', 'MM\0*'])

/** Returns the type that the first bytes show; null if they are no image. */
async function imageType(head: Buffer): Promise<string | null> {
  const detected = (await fileTypeFromBuffer(head).catch(() => undefined))?.mime
  if (detected === 'image/apng') return 'image/png'
  // The detector needs the directory of a TIFF, which may be at its end.
  if (detected === undefined && TIFF.has(head.toString('latin1', 0, 4))) return 'image/tiff'
  if (detected?.startsWith('image/') && detected !== 'image/svg+xml') return detected
  const isText = detected === undefined || detected.endsWith('xml')
  return isText && head.toString('latin1').includes('<svg') ? 'image/svg+xml' : null
}

function isComplete(mediaType: string, base64: string, bytes: number): boolean {
  if (mediaType === 'image/webp') return Buffer.from(base64.slice(0, 12), 'base64').readUInt32LE(4) + 8 <= bytes
  const end = ENDS[mediaType]
  if (!end) return true
  const start = Math.max(0, Math.floor((base64.length - TAIL) / 4) * 4)
  return Buffer.from(base64.slice(start), 'base64').includes(end)
}
