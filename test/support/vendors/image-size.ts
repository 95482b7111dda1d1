/** What the bytes of an image say; `type` is null for other data. */
export type SentImage = { type: string | null; longest: number; pixels: number; isAnimated: boolean }

const NOTHING: SentImage = { type: null, longest: 0, pixels: 0, isAnimated: false }

const sides = (type: string, width: number, height: number, isAnimated = false): SentImage => ({
  type,
  longest: Math.max(width, height),
  pixels: width * height,
  isAnimated,
})

/** Returns what a PNG, JPEG, GIF or WebP image in base64 is. */
export function sentImage(base64: unknown): SentImage {
  if (typeof base64 !== 'string') return NOTHING
  const bytes = Buffer.from(base64.slice(0, 200_000), 'base64')
  if (bytes.length < 24) return NOTHING
  if (bytes.readUInt32BE(0) === 0x89504e47) return sides('image/png', bytes.readUInt32BE(16), bytes.readUInt32BE(20))
  const start = bytes.toString('latin1', 0, 12)
  if (start.startsWith('GIF'))
    return sides('image/gif', bytes.readUInt16LE(6), bytes.readUInt16LE(8), bytes.includes('NETSCAPE2.0'))
  if (start.startsWith('RIFF') && start.endsWith('WEBP')) return { ...NOTHING, type: 'image/webp' }
  return bytes.readUInt16BE(0) === 0xffd8 ? jpeg(bytes) : NOTHING
}

/** Reads the frame header of a JPEG image, whose markers are 0xc0 to 0xcf without three tables. */
function jpeg(bytes: Buffer): SentImage {
  let at = 2
  while (at + 9 < bytes.length) {
    const marker = bytes[at + 1]!
    if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker))
      return sides('image/jpeg', bytes.readUInt16BE(at + 7), bytes.readUInt16BE(at + 5))
    at += 2 + bytes.readUInt16BE(at + 2)
  }
  return { ...NOTHING, type: 'image/jpeg' }
}

/** Returns the media type and data of a data URL; null for other texts. */
export function dataUrl(url: unknown): { type: string; data: string } | null {
  if (typeof url !== 'string' || !url.startsWith('data:')) return null
  const [head = '', data = ''] = url.slice('data:'.length).split(',')
  return { type: head.split(';')[0]!, data }
}
