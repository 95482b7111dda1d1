import { CONVERTIBLE, imageConverter, imageDigest } from '#content/images/convert.ts'
import { type ImageFacts, imageFacts } from '#content/images/facts.ts'
import type { ImageTarget } from '#content/images/image-process.ts'
import type { Services } from '#core/base/services.ts'
import { countImage } from '../metrics.ts'
import type { AttachedFile, ModelRequest, PromptMessage, ToolResultPart, VendorNote } from '../model-messages.ts'
import type { MediaLimits } from './media-limits.ts'
import { contentWithMedia, type MediaItem, mediaNote, mediaResult, type ResultItem } from './result-media.ts'

/** An image, PDF or audio file of a request. `owner`: the object that is the same in each request of a turn. */
type Media = MediaItem & { owner: object }

/** Content or text that is sent in place of a file. */
type Fitted = { media_type: string; data_base64: string } | { text: string }

type Fitting = { services: Services; project: string; signal: AbortSignal }

/** Time that the images of a request may wait for conversions and be converted; the rest are left out. */
const CONVERSION_MS = 120_000

/**
 * Returns a request whose images, PDFs and audio its vendor takes: images of other types and sizes are converted, texts replace
 * files that cannot be. Nothing is decoded for images that fit.
 * @throws the reason of the signal
 */
export async function fitMedia(
  request: ModelRequest,
  limits: MediaLimits,
  { services, project, signal }: Fitting,
): Promise<{ request: ModelRequest; notes: VendorNote[] }> {
  const media = request.messages.flatMap(mediaOf)
  if (media.length === 0) return { request, notes: [] }
  const takesImages = request.inputs?.has('image') ?? true
  const images = await Promise.all(media.filter(isImage).map(factsOf))
  const target = targetOf(images, limits)
  const fitted = new Map<object, Fitted>()
  const notes: VendorNote[] = []
  const late = AbortSignal.timeout(CONVERSION_MS)
  for (const each of media) {
    // A file may be in a request several times.
    if (fitted.has(each.owner) || (isImage(each) && !takesImages)) continue
    const result = isImage(each)
      ? await fittedImage(each, await factsOf(each), { limits, target }, { services, project, signal, late })
      : fittedFile(each, limits)
    if (!result) continue
    fitted.set(each.owner, result.fitted)
    notes.push(result.note)
  }
  if (fitted.size === 0) return { request, notes }
  return { request: { ...request, messages: request.messages.map(message => withFitted(message, fitted)) }, notes }
}

const isImage = ({ media_type }: Pick<Media, 'media_type'>): boolean => media_type.startsWith('image/')

/** Returns the files of a message. */
function mediaOf(message: PromptMessage): Media[] {
  if (typeof message.content === 'string' || message.role === 'assistant') return []
  if (message.role === 'user')
    return message.content.flatMap(part => (part.type === 'attachment' ? [{ ...mediaItem(part), owner: part }] : []))
  return message.content.flatMap(part =>
    (resultItems(part) ?? []).flatMap((item, at) =>
      item.type === 'media' ? [{ ...item, owner: (part.result as object[])[at] }] : [],
    ),
  )
}

const mediaItem = ({ media_type, data_base64 }: AttachedFile): MediaItem => ({ type: 'media', media_type, data_base64 })

const itemsOfResults = new WeakMap<object, ResultItem[] | null>()

/** Returns the items of a result with media, in the order of its content; null for other results. */
function resultItems({ error, result }: ToolResultPart): ResultItem[] | null {
  if (error || !Array.isArray(result)) return null
  const known = itemsOfResults.get(result)
  if (known !== undefined) return known
  const items = contentWithMedia(result)
  itemsOfResults.set(result, items)
  return items
}

/** Facts by the object of the image, so that a turn reads each once. */
const facts = new WeakMap<object, Promise<ImageFacts | null>>()
const digests = new WeakMap<object, string>()

function factsOf({ owner, data_base64 }: Media): Promise<ImageFacts | null> {
  const read = facts.get(owner) ?? imageFacts(data_base64)
  facts.set(owner, read)
  return read
}

function digestOf({ owner, data_base64 }: Media): string {
  const digest = digests.get(owner) ?? imageDigest(data_base64)
  digests.set(owner, digest)
  return digest
}

/** Returns what each image of a request must be: with many images the limits are lower. */
function targetOf(images: readonly (ImageFacts | null)[], limits: MediaLimits): ImageTarget {
  const { manyImages, totalBytes } = limits
  const isMany = manyImages !== null && images.length > manyImages.above
  const total = images.reduce((sum, image) => sum + Math.min(image?.bytes ?? 0, limits.maxBytes), 0)
  return {
    maxSide: isMany ? manyImages.maxSide : limits.maxSide,
    maxPixels: limits.maxPixels,
    maxBytes: total > totalBytes ? Math.floor(totalBytes / images.length) : limits.maxBytes,
  }
}

/** Returns the text for a PDF or audio file that is too large; null if it fits. */
function fittedFile({ media_type, data_base64 }: Media, { maxFileBytes }: MediaLimits) {
  if (Buffer.byteLength(data_base64, 'base64') <= maxFileBytes) return null
  return leftOut({ media_type, data_base64 }, `the vendor takes at most ${maxFileBytes} bytes`)
}

type Sendable = Pick<Media, 'media_type' | 'data_base64'>

function leftOut({ media_type, data_base64 }: Sendable, reason: string): { fitted: Fitted; note: VendorNote } {
  const text = mediaNote(media_type, data_base64, reason)
  return { fitted: { text }, note: { kind: 'media_left_out', message: text.slice(1, -1) } }
}

/** Returns the image or text to send, with a note; null for an image that is sent unchanged. */
async function fittedImage(
  image: Media,
  facts: ImageFacts | null,
  { limits, target }: { limits: MediaLimits; target: ImageTarget },
  { services, project, signal, late }: Fitting & { late: AbortSignal },
): Promise<{ fitted: Fitted; note: VendorNote } | null> {
  if (!facts) return leftOut(image, 'it is not a readable image')
  const { media_type, data_base64 } = { ...image, media_type: facts.media_type }
  if (fits(facts, limits, target)) {
    if (media_type === image.media_type) return null
    const note = { kind: 'media_changed' as const, message: `${image.media_type} sent as ${media_type}, which it is` }
    return { fitted: { media_type, data_base64 }, note }
  }
  if (!CONVERTIBLE.has(media_type)) return leftOut(image, `${media_type} cannot be converted`)
  const converted = await imageConverter(services)
    .convert({ digest: digestOf(image), data_base64 }, target, { project, signal: AbortSignal.any([signal, late]) })
    .catch(error => (late.aborted && !signal.aborted ? null : Promise.reject(error)))
  if (!converted) return leftOut(image, `the images of this request take longer than ${CONVERSION_MS / 1000} s`)
  const { outcome, isNew } = converted
  if (isNew) {
    countImage(outcome.ok ? 'converted' : outcome.kind)
    if (!outcome.ok && outcome.kind !== 'refused')
      services.log.warn({ reason: outcome.reason }, 'image was not converted')
  }
  if (!outcome.ok) return leftOut(image, outcome.reason)
  const message = `${described(facts)}, sent as ${described(outcome)}`
  return { fitted: outcome, note: { kind: 'media_changed', message } }
}

const fits = (
  { media_type, width, height, frames, bytes, isComplete }: ImageFacts,
  { images, animated }: MediaLimits,
  { maxSide, maxPixels, maxBytes }: ImageTarget,
): boolean =>
  images.has(media_type) &&
  isComplete &&
  (animated || frames === 1) &&
  Math.max(width ?? 0, height ?? 0) <= maxSide &&
  (width ?? 0) * (height ?? 0) <= maxPixels &&
  bytes <= maxBytes

type Described = {
  media_type: string
  width: number | null
  height: number | null
  bytes?: number
  data_base64?: string
}

function described({ media_type, width, height, bytes, data_base64 }: Described): string {
  const size = bytes ?? Buffer.byteLength(data_base64 ?? '', 'base64')
  const sides = width === null ? '' : `${width} × ${height} pixels and `
  return `${media_type} of ${sides}${Math.ceil(size / 1024)} KB`
}

function withFitted(message: PromptMessage, fitted: ReadonlyMap<object, Fitted>): PromptMessage {
  if (typeof message.content === 'string' || message.role === 'assistant') return message
  if (message.role === 'user') {
    const content = message.content.map(part => {
      const sent = fitted.get(part)
      if (!sent || part.type !== 'attachment') return part
      return 'text' in sent ? { type: 'text' as const, text: sent.text } : { ...part, ...pictureOf(sent) }
    })
    return { ...message, content }
  }
  return {
    ...message,
    content: message.content.map(part => {
      const items = resultItems(part)
      const owners = part.result as object[]
      if (!items || !owners.some(owner => fitted.has(owner))) return part
      return { ...part, result: resultOf(items.map((item, at) => resultItem(item, fitted.get(owners[at])))) }
    }),
  }
}

/** Returns items as a result: as one text if nothing else is left. */
const resultOf = (items: readonly ResultItem[]): unknown => {
  const texts = items.flatMap(item => (item.type === 'text' ? [item.text] : []))
  return texts.length === items.length ? texts.join('\n') : mediaResult(items)
}

const pictureOf = ({ media_type, data_base64 }: Exclude<Fitted, { text: string }>) => ({ media_type, data_base64 })

const resultItem = (item: ResultItem, sent: Fitted | undefined): ResultItem =>
  !sent ? item : 'text' in sent ? { type: 'text', ...sent } : { type: 'media', ...pictureOf(sent) }
