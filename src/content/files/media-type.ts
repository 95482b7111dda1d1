import path from 'node:path'
import mime from 'mime-types'
import { z } from 'zod'

const TOKEN = "[\\w!#$%&'*+.^`|~-]+"
const MEDIA_TYPE = new RegExp(`^${TOKEN}/${TOKEN}( *; *${TOKEN}=(${TOKEN}|"[ !#-\\[\\]-~]*"))*$`)

const UNKNOWN = 'application/octet-stream'

/** Extensions without a type in the registry, or with another type than browsers use. */
const BY_EXTENSION: Record<string, string> = {
  '.md': 'text/markdown',
  '.markdown': 'text/markdown',
  '.m4a': 'audio/mp4',
  '.mp3': 'audio/mpeg',
  '.mp4': 'video/mp4',
  '.wav': 'audio/wav',
}

/** Media type with parameters. */
export const MediaType = z
  .string()
  .trim()
  .max(255)
  .refine(text => MEDIA_TYPE.test(text), 'must be a media type such as text/plain')

/** Returns type and subtype without parameters, in lower case, for comparisons. */
export const essenceOf = (type: string): string => type.split(';', 1)[0].trim().toLowerCase()

function typeByExtension(filename: string): string | null {
  const extension = path.extname(filename).toLowerCase()
  if (extension === '') return null
  return BY_EXTENSION[extension] ?? (mime.lookup(extension) || null)
}

async function typeByContent(head: Buffer): Promise<string | null> {
  // Loaded on demand: most files have a type by name.
  const { fileTypeFromBuffer } = await import('file-type')
  return (await fileTypeFromBuffer(head))?.mime ?? null
}

const isSpecific = (type: string | null | undefined): type is string =>
  !!type && essenceOf(type) !== UNKNOWN && MEDIA_TYPE.test(type) && type.length <= 255

/**
 * Returns the media type of a file from the first source that has one: the caller, the form part or header, the
 * previous type, the extension, the first bytes.
 */
export async function mediaTypeOf(sources: {
  claimed?: string | null
  part?: string | null
  previous?: string | null
  filename: string
  head?: Buffer
}): Promise<string> {
  const { claimed, part, previous, filename, head } = sources
  if (claimed) return claimed
  if (isSpecific(part)) return part
  if (isSpecific(previous)) return previous
  return typeByExtension(filename) ?? (head && (await typeByContent(head))) ?? UNKNOWN
}
