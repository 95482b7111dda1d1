import { once } from 'node:events'
import { pathToFileURL } from 'node:url'
import { Worker } from 'node:worker_threads'
import type { Sharp } from 'sharp'

/**
 * Program that converts images, one after the other. convert.ts starts it, sends an ImageRequest and writes the bytes to its
 * standard input. It has no secrets and may be killed at any time.
 */
export type ImageRequest = { size: number; target: ImageTarget }
/** What an image must become: PNG or JPEG within these limits. Sides are in pixels. */
export type ImageTarget = { maxSide: number; maxPixels: number; maxBytes: number }
export type ImageAnswer = (Converted | Refused) & { reusable: boolean }
export type Converted = { ok: true; bytes: Uint8Array; media_type: string; width: number; height: number }
type Refused = { ok: false; reason: string }

const [memory, sharpFile, monitorFile, missingCode] = process.argv.slice(2)
const maxMemoryBytes = Number(memory)

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
async function convert(bytes: Buffer, { maxSide, maxPixels, maxBytes }: ImageTarget): Promise<Converted | Refused> {
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

const send = (answer: ImageAnswer) => process.send?.(answer)

async function answer({ size, target }: ImageRequest): Promise<void> {
  const bytes = Buffer.allocUnsafe(size)
  for (let filled = 0; filled < size; ) {
    const part = process.stdin.read(Math.min(size - filled, process.stdin.readableLength)) as Buffer | null
    if (!part) {
      await once(process.stdin, 'readable')
      continue
    }
    filled += part.copy(bytes, filled)
  }
  const outcome = await convert(bytes, target).catch((error: unknown) => ({
    ok: false as const,
    reason: reasonOf(error),
  }))
  send({ ...outcome, reusable: process.memoryUsage.rss() < maxMemoryBytes / 2 })
}

const reasonOf = (error: unknown): string =>
  `it cannot be decoded: ${(error instanceof Error ? error.message : String(error)).replaceAll('\n', ' ').slice(0, 150)}`

process.on('disconnect', () => process.exit())

const monitor = new Worker(pathToFileURL(monitorFile), {
  workerData: { parent: process.ppid, maxMemoryBytes },
  resourceLimits: { maxOldGenerationSizeMb: 16, maxYoungGenerationSizeMb: 4 },
})
await once(monitor, 'online')
process.on('message', request => void answer(request as ImageRequest))
