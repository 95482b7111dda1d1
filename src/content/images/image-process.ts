import { pathToFileURL } from 'node:url'
import type { Sharp } from 'sharp'
import { answerRequests, programArguments } from '#core/threads/confined-program.ts'

/** Program that converts images, which convert.ts starts. It has no secrets and may be killed at any time. */
/** What an image must become: PNG or JPEG within these limits. Sides are in pixels. */
export type ImageTarget = { maxSide: number; maxPixels: number; maxBytes: number }
export type ImageAnswer =
  | { ok: true; bytes: Uint8Array; media_type: string; width: number; height: number }
  | { ok: false; reason: string }

const [sharpFile, missingCode] = programArguments()

/** Loads the library, whose binary may not exist for this platform. */
const load = (): Promise<typeof import('sharp')> => import(pathToFileURL(sharpFile).href)
const { default: sharp } = await load().catch(() => process.exit(Number(missingCode)))

/** Decoders of formats that convert.ts offers; the others of the library are never reached by content of callers. */
const DECODERS = ['Png', 'Jpeg', 'Webp', 'Nsgif', 'Tiff', 'Svg', 'Heif']

sharp.block({ operation: ['VipsForeignLoad'] })
sharp.unblock({ operation: DECODERS.map(name => `VipsForeignLoad${name}Buffer`) })
sharp.cache(false)
sharp.concurrency(1)

/** Most pixels that are decoded, and that are written. */
const MAX_PIXELS = 100_000_000
const MAX_WRITTEN = 40_000_000
/** Attempts to make an image small enough. */
const MAX_ATTEMPTS = 8

/** Makes an image fit: upright, in sRGB, first frame only, as PNG, or as JPEG if it was one or PNG takes too many bytes. */
async function convert(bytes: Buffer, { maxSide, maxPixels, maxBytes }: ImageTarget): Promise<ImageAnswer> {
  // Without a base address, SVG cannot refer to files or addresses.
  const open = () => sharp(bytes, { limitInputPixels: MAX_PIXELS, failOn: 'error' })
  const { format, autoOrient } = await open().metadata()
  const { width, height } = autoOrient
  const pixels = Math.min(maxPixels, MAX_WRITTEN)
  let scale = Math.min(1, maxSide / Math.max(width, height), Math.sqrt(pixels / (width * height)))
  // PNG would not take fewer bytes than these formats.
  const isCompressed = format === 'png' || format === 'webp' || format === 'gif'
  let isPhoto = format === 'jpeg' || (isCompressed && bytes.length * scale ** 2 > maxBytes)
  for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
    const sides = { width: scaled(width, scale), height: scaled(height, scale) }
    const image = open()
      .autoOrient()
      .resize({ ...sides, fit: 'fill' })
      .toColourspace('srgb')
    const encoded = await (isPhoto ? asJpeg(image) : image.png()).toBuffer()
    if (encoded.length <= maxBytes)
      return { ok: true, bytes: encoded, media_type: isPhoto ? 'image/jpeg' : 'image/png', ...sides }
    if (isPhoto) scale *= Math.max(0.25, 0.95 * Math.sqrt(maxBytes / encoded.length))
    isPhoto = true
  }
  return { ok: false, reason: `it does not fit into ${maxBytes} bytes` }
}

const asJpeg = (image: Sharp): Sharp => image.flatten({ background: '#ffffff' }).jpeg({ quality: 85 })

/** Rounded down, so that a limit holds for each side and for the pixels. */
const scaled = (side: number, scale: number): number => Math.max(1, Math.floor(side * scale))

const reasonOf = (error: unknown): string =>
  `it cannot be decoded: ${(error instanceof Error ? error.message : String(error)).replaceAll('\n', ' ').slice(0, 150)}`

await answerRequests<ImageTarget, never, ImageAnswer>((content, target) =>
  convert(content, target).catch((error: unknown) => ({ ok: false, reason: reasonOf(error) })),
)
