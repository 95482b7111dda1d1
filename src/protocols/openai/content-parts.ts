import { z } from 'zod'
import { type Problem, raiseInvalid } from '#core/base/errors.ts'
import type { AttachedFile, FilePart, TextPart } from '#execution/providers/model-messages.ts'
import { imageName, type RemoteImage } from './client-media.ts'

const text = z.string().max(262_144)
const base64 = z.base64()

const ImageUrl = z.object({
  type: z.literal('image_url'),
  image_url: z.union([z.string(), z.object({ url: z.string() })]),
})
const InputImage = z.object({
  type: z.literal('input_image'),
  image_url: z.string().nullish(),
  file_id: z.string().nullish(),
})
const InputAudio = z.object({
  type: z.literal('input_audio'),
  input_audio: z.object({ data: base64, format: z.enum(['wav', 'mp3']) }),
})
const FileContent = z.object({
  file_id: z.string().nullish(),
  file_data: z.string().nullish(),
  filename: z.string().max(255).nullish(),
})
const File = z.object({ type: z.literal('file'), file: FileContent })
const InputFile = FileContent.extend({ type: z.literal('input_file') })
export const TextContentPart = z.object({ type: z.enum(['text', 'input_text', 'output_text']), text })
const Refusal = z.object({ type: z.literal('refusal'), refusal: text })

/** Text of a message, or of its parts. */
export const TextContent = z.union([text, z.array(z.union([TextContentPart, Refusal])).max(64)])
/** Content of a message of the user. */
export const UserContent = z.union([
  text,
  z.array(z.discriminatedUnion('type', [TextContentPart, ImageUrl, InputImage, InputAudio, File, InputFile])).max(64),
])

/** Returns the texts of a content, separated by a blank line. */
export const textOf = (content: z.output<typeof TextContent> | null | undefined): string =>
  typeof content === 'string'
    ? content
    : (content ?? []).map(part => (part.type === 'refusal' ? part.refusal : part.text)).join('\n\n')

const AUDIO = { wav: 'audio/wav', mp3: 'audio/mpeg' } as const
const IMAGE = /^image\/(png|jpeg|webp|gif)$/
const DATA_URL = /^data:([\w.+-]+\/[\w.+-]+)(?:;[\w=.+-]+)*;base64,([A-Za-z0-9+/]*={0,2})$/

const problem = (path: string, message: string): Problem => ({ code: 'INVALID_VALUE', path, message })

/** Returns the file in a data URL; the message of a problem otherwise. */
function parseDataUrl(url: string, filename: string): AttachedFile | string {
  const found = DATA_URL.exec(url)
  if (!found) return 'must be a data URL with base64 content'
  return { type: 'attachment', filename, media_type: found[1].toLowerCase(), data_base64: found[2] }
}

type UserPart = TextPart | FilePart | AttachedFile

const MAX_URL = 8192

function imageOf(url: string, path: string): UserPart {
  if (/^https?:\/\//i.test(url)) return remoteImage(url, path)
  const image = parseDataUrl(url, 'image')
  if (typeof image === 'string') return raiseInvalid(problem(path, 'must be a URL, or a data URL with base64 content'))
  if (!IMAGE.test(image.media_type)) raiseInvalid(problem(path, 'must be a PNG, JPEG, WebP or GIF image'))
  return { ...image, filename: imageName(image.media_type) }
}

/** Returns an image that is fetched after the permission check. The egress rule decides about http and the host. */
function remoteImage(url: string, path: string): RemoteImage {
  if (url.length > MAX_URL || !URL.canParse(url))
    raiseInvalid(problem(path, `must be a URL of at most ${MAX_URL} characters`))
  return { type: 'attachment', filename: 'image', media_type: 'image/*', data_base64: '', url }
}

function fileOf({ file_id, file_data, filename }: z.output<typeof FileContent>, path: string): UserPart {
  if (file_id) return { type: 'file', file_id }
  if (!file_data) return raiseInvalid(problem(path, 'must have file_id or file_data'))
  const file = parseDataUrl(file_data, filename ?? 'file')
  return typeof file === 'string' ? raiseInvalid(problem(`${path}.file_data`, file)) : file
}

function partOf(part: Exclude<z.output<typeof UserContent>, string>[number], path: string): UserPart {
  switch (part.type) {
    case 'image_url':
      return imageOf(typeof part.image_url === 'string' ? part.image_url : part.image_url.url, `${path}.image_url`)
    case 'input_image':
      if (part.file_id) return { type: 'file', file_id: part.file_id }
      return imageOf(part.image_url ?? '', `${path}.image_url`)
    case 'input_audio': {
      const { data, format } = part.input_audio
      return { type: 'attachment', filename: `audio.${format}`, media_type: AUDIO[format], data_base64: data }
    }
    case 'file':
      return fileOf(part.file, `${path}.file`)
    case 'input_file':
      return fileOf(part, path)
    default:
      return { type: 'text', text: part.text }
  }
}

/** Returns the content of a message of the user. @throws VALIDATION_FAILED */
export const userContentOf = (content: z.output<typeof UserContent>, path: string): string | UserPart[] =>
  typeof content === 'string'
    ? content
    : content.every(part => 'text' in part)
      ? content.map(part => part.text).join('\n\n')
      : content.map((part, index) => partOf(part, `${path}[${index}]`))
