import type { Dialect, ProviderType } from '../model.ts'

/** Support of a limit, as of the rules of the simulators: several independent sources, or one. */
type Source = { source: 'S' | '1'; date: string }

/** What a vendor takes of media in a request. Bytes are of the files, before base64. */
export type MediaLimits = Source & {
  /** Media types of images. */
  images: ReadonlySet<string>
  /** Whether a GIF may have several frames. */
  animated: boolean
  /** Longest side of an image in pixels, and of each image of a request that has more than `above`. */
  maxSide: number
  manyImages: { above: number; maxSide: number } | null
  /** Pixels of an image. */
  maxPixels: number
  maxBytes: number
  /** Bytes of all images of a request. */
  totalBytes: number
  /** Bytes of a PDF or audio file. */
  maxFileBytes: number
}

const MB = 1_000_000
const MIB = 1024 * 1024
const NONE = Number.MAX_SAFE_INTEGER

const COMMON = ['image/png', 'image/jpeg', 'image/webp']
const WITH_GIF: ReadonlySet<string> = new Set([...COMMON, 'image/gif'])

/** Guide "Images and vision": 50 MB of images a request; each up to 20 MB; GIF without animation. */
const OPENAI: MediaLimits = {
  source: 'S',
  date: '2026-11',
  images: WITH_GIF,
  animated: false,
  maxSide: NONE,
  manyImages: null,
  maxPixels: NONE,
  maxBytes: 20 * MB,
  totalBytes: 50 * MB,
  maxFileBytes: 50 * MB,
}

/**
 * Guide "Vision" and refusals that users quote: "image exceeds 5 MB maximum: 5272940 bytes > 5242880 bytes" counts base64;
 * 32 MB a request.
 */
const ANTHROPIC: MediaLimits = {
  source: 'S',
  date: '2026-09',
  images: WITH_GIF,
  animated: true,
  maxSide: 8000,
  manyImages: { above: 20, maxSide: 2000 },
  maxPixels: NONE,
  maxBytes: (5 * MIB * 3) / 4,
  totalBytes: 23 * MB,
  maxFileBytes: 23 * MB,
}

/** API reference of Converse: images of 3.75 MB and 8,000 pixels a side, documents of 4.5 MB; 20 MB a request. */
const BEDROCK: MediaLimits = {
  ...ANTHROPIC,
  date: '2026-11',
  maxBytes: 3.75 * MB,
  totalBytes: 14 * MB,
  maxFileBytes: 4.5 * MB,
}

/** Guide "Image understanding": no GIF; larger images are scaled there. Inline data of 20 MB a request. */
const GOOGLE: MediaLimits = {
  ...OPENAI,
  images: new Set([...COMMON, 'image/heic', 'image/heif']),
  maxBytes: 14 * MB,
  totalBytes: 14 * MB,
  maxFileBytes: 14 * MB,
}

/** Guide "Image understanding": JPEG and PNG of up to 20 MiB. */
const XAI: MediaLimits = { ...OPENAI, images: new Set(['image/png', 'image/jpeg']), maxBytes: 20 * MIB }

/** Guide "Images and vision": 33,177,600 pixels, and 4 MB of base64 a request. */
const GROQ: MediaLimits = { ...OPENAI, source: '1', maxPixels: 33_177_600, maxBytes: 2.9 * MB, totalBytes: 2.9 * MB }

/** Guide "Vision": images of 10 MB. */
const MISTRAL: MediaLimits = { ...OPENAI, source: '1', maxBytes: 10 * MB }

/** Measured by a user: 5,120 × 5,120 pixels are taken, one more is not. */
const LMSTUDIO: MediaLimits = { ...OPENAI, source: '1', date: '2026-06', maxPixels: 26_214_400 }

const DIALECTS: Partial<Record<Dialect, MediaLimits>> = { mistral: MISTRAL, lmstudio: LMSTUDIO }

const TYPES: Partial<Record<ProviderType, MediaLimits>> = {
  anthropic: ANTHROPIC,
  bedrock: BEDROCK,
  google: GOOGLE,
  vertex: GOOGLE,
  xai: XAI,
  groq: GROQ,
}

/** Models of Claude at gateways, which pass on the refusals of Anthropic. */
const isClaude = (model: string): boolean => model.toLowerCase().includes('claude')

/** Returns what a vendor takes, by its provider's type and dialect of the OpenAI API. */
export const mediaLimits = (type: ProviderType, dialect: Dialect, model: string): MediaLimits =>
  TYPES[type] ?? DIALECTS[dialect] ?? (isClaude(model) ? ANTHROPIC : OPENAI)
