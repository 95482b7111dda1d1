import path from 'node:path'
import mime from 'mime-types'
import { z } from 'zod'

const TOKEN = "[\\w!#$%&'*+.^`|~-]+"
const MEDIA_TYPE = new RegExp(`^${TOKEN}/${TOKEN}( *; *${TOKEN}=(${TOKEN}|"[ !#-\\[\\]-~]*"))*$`)

/** What stands for "nobody knows". */
const UNKNOWN = 'application/octet-stream'

/** Extensions whose type the registry leaves open or spells otherwise than browsers do. */
const BY_EXTENSION: Record<string, string> = {
  '.md': 'text/markdown',
  '.markdown': 'text/markdown',
  '.m4a': 'audio/mp4',
  '.mp3': 'audio/mpeg',
  '.mp4': 'video/mp4',
  '.wav': 'audio/wav',
}

/** A media type as a caller claims it, parameters included. */
export const MediaType = z
  .string()
  .trim()
  .max(255)
  .refine(text => MEDIA_TYPE.test(text), 'must be a media type such as text/plain')

/** Type and subtype alone, in lower case: what types are compared by. */
export const essenceOf = (type: string): string => type.split(';', 1)[0].trim().toLowerCase()

function byExtension(filename: string): string | null {
  const extension = path.extname(filename).toLowerCase()
  if (extension === '') return null
  return BY_EXTENSION[extension] ?? (mime.lookup(extension) || null)
}

async function byContent(head: Buffer): Promise<string | null> {
  // Loaded at the first file that nothing else tells the type of.
  const { fileTypeFromBuffer } = await import('file-type')
  return (await fileTypeFromBuffer(head))?.mime ?? null
}

const told = (type: string | null | undefined): type is string =>
  !!type && essenceOf(type) !== UNKNOWN && MEDIA_TYPE.test(type) && type.length <= 255

/**
 * The media type of a file: what the caller says, what its part or header says, what was known of
 * it before, what the extension says, what the first bytes say.
 */
export async function mediaTypeOf(known: {
  claimed?: string | null
  part?: string | null
  before?: string | null
  filename: string
  head?: Buffer
}): Promise<string> {
  if (known.claimed) return known.claimed
  if (told(known.part)) return known.part
  if (told(known.before)) return known.before
  return byExtension(known.filename) ?? (known.head && (await byContent(known.head))) ?? UNKNOWN
}
