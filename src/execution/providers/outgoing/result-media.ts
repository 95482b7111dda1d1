/** Content of a tool's result as a model may receive it: texts and media. */
export type ResultItem = { type: 'text'; text: string } | MediaItem
export type MediaItem = { type: 'media'; media_type: string; data_base64: string }

const MAX_ITEMS = 100
/** Media that vendors take in results; images after they were made fit. */
const MEDIA = /^(application\/pdf|(image|audio)\/[\w.+-]+)$/
const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/

/**
 * Returns the content of a result in the format of the Model Context Protocol with images, audio or files; null for any
 * other result. Media of other types are named in texts.
 */
export function contentWithMedia(result: unknown): ResultItem[] | null {
  if (!Array.isArray(result) || result.length === 0 || result.length > MAX_ITEMS) return null
  const items: ResultItem[] = []
  for (const each of result) {
    const item = itemOf(each)
    if (!item) return null
    items.push(item)
  }
  return items.some(({ type }) => type === 'media') ? items : null
}

function itemOf(value: unknown): ResultItem | null {
  const { type, text, data, mimeType, resource, uri, name } = Object(value) as Record<string, unknown>
  if (type === 'text' && typeof text === 'string') return { type, text }
  if (type === 'image' || type === 'audio') return mediaItem(mimeType, data)
  if (type === 'resource_link' && typeof uri === 'string')
    return { type: 'text', text: [name, uri].filter(part => typeof part === 'string').join(': ') }
  if (type !== 'resource') return null
  const { uri: source, text: content, blob, mimeType: kind } = Object(resource) as Record<string, unknown>
  if (typeof content === 'string') return { type: 'text', text: `${source ?? ''}\n${content}`.trim() }
  return mediaItem(kind, blob)
}

function mediaItem(mediaType: unknown, data: unknown): ResultItem | null {
  if (typeof mediaType !== 'string' || typeof data !== 'string') return null
  return MEDIA.test(mediaType) && BASE64.test(data)
    ? { type: 'media', media_type: mediaType, data_base64: data }
    : { type: 'text', text: mediaNote(mediaType, data) }
}

/** Returns content as a result that contentWithMedia reads. */
export const mediaResult = (items: readonly ResultItem[]): object[] =>
  items.map(item => {
    if (item.type === 'text') return item
    const { media_type: mimeType, data_base64: data } = item
    return mimeType.startsWith('image/')
      ? { type: 'image', mimeType, data }
      : { type: 'resource', resource: { mimeType, blob: data } }
  })

/** Returns the text in place of media. */
export const mediaNote = (mediaType: string, base64: string, reason?: string): string =>
  `[${mediaType.slice(0, 100)}, ${Math.ceil((base64.length * 3) / 4 / 1024)} KB, not shown${reason ? `: ${reason}` : ''}]`
