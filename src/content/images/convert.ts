import { createHash } from 'node:crypto'
import { realpathSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { LRUCache } from 'lru-cache'
import { FairSemaphore } from '#core/base/fair-semaphore.ts'
import { sharedSingleton } from '#core/base/process-singleton.ts'
import { ConfinedProcesses } from '#core/threads/confined-processes.ts'
import type { ImageAnswer, ImageTarget } from './image-process.ts'

/** A converted image, or why there is none. `unavailable`: the library cannot be loaded on this host. */
type ImageOutcome =
  | { ok: true; data_base64: string; media_type: string; width: number; height: number }
  | { ok: false; reason: string; kind: 'refused' | 'failed' | 'unavailable' }

/** Media types that can be converted. HEIC is not: its decoders are not free of patents, and the library has none. */
export const CONVERTIBLE: ReadonlySet<string> = new Set([
  'image/png',
  'image/jpeg',
  'image/gif',
  'image/webp',
  'image/tiff',
  'image/svg+xml',
  'image/avif',
])

/** Limits for one image: duration, and memory of the process including program and image. */
const TIMEOUT_MS = 20_000
const MEMORY_BYTES = 768 * 1024 * 1024

/** Characters of converted images that are kept, and for how long: a turn sends its images in each of its steps. */
const CACHE_CHARACTERS = 48 * 1024 * 1024
const CACHE_MS = 60 * 60_000
/** How long a failure is kept that may be due to the host. */
const FAILURE_MS = 10 * 60_000

/** An active conversion: how many callers wait for it, and its end when none is left. */
type Flight = { outcome: Promise<ImageOutcome>; waiting: number; stop: AbortController }

/**
 * Converts images in a separate process, one at a time, which is killed above the limits of time and memory: a decoder that
 * crashes, or an image that unpacks to gigabytes, ends no turn. Equal images with equal targets give equal bytes, so that
 * vendors find them in their caches.
 */
class ImageConverter {
  readonly #slot = new FairSemaphore(1)
  readonly #kept = new LRUCache<string, ImageOutcome>({
    maxSize: CACHE_CHARACTERS,
    sizeCalculation: outcome => 500 + (outcome.ok ? outcome.data_base64.length : 0),
    ttl: CACHE_MS,
  })
  readonly #flights = new Map<string, Flight>()
  /** Null if the library, an optional package, is not installed. */
  readonly #processes = openProcesses()

  /**
   * Returns an image within the limits, and whether it was converted just now. Waits for its turn: the project that waited
   * longest is next.
   * @param digest of the image, see `imageDigest`
   * @throws the reason of the signal
   */
  async convert(
    image: { digest: string; data_base64: string },
    target: ImageTarget,
    { project, signal }: { project: string; signal: AbortSignal },
  ): Promise<{ outcome: ImageOutcome; isNew: boolean }> {
    const key = `${image.digest} ${target.maxSide} ${target.maxPixels} ${target.maxBytes}`
    const kept = this.#kept.get(key)
    if (kept) return { outcome: kept, isNew: false }
    const existing = this.#flights.get(key)
    const flight = existing ?? this.#begin(key, image.data_base64, target, project)
    flight.waiting += 1
    let onAbort = () => {}
    const aborted = new Promise<never>((_, reject) => {
      onAbort = () => reject(signal.reason)
      signal.addEventListener('abort', onAbort, { once: true })
      if (signal.aborted) onAbort()
    })
    try {
      return { outcome: await Promise.race([flight.outcome, aborted]), isNew: !existing }
    } finally {
      signal.removeEventListener('abort', onAbort)
      flight.waiting -= 1
      if (flight.waiting === 0) this.#end(key, flight)
    }
  }

  close(): void {
    this.#processes?.close()
  }

  #begin(key: string, base64: string, target: ImageTarget, project: string): Flight {
    const stop = new AbortController()
    const outcome = this.#slot
      .use(project, 1, stop.signal, () => this.#run(Buffer.from(base64, 'base64'), target, stop.signal))
      .then(
        result => {
          const isLasting = result.ok || result.kind === 'refused'
          if (!stop.signal.aborted) this.#kept.set(key, result, isLasting ? {} : { ttl: FAILURE_MS })
          return result
        },
        // No caller waits for it.
        (error: Error): ImageOutcome => ({ ok: false, reason: error.message, kind: 'failed' }),
      )
    const flight: Flight = { outcome, waiting: 0, stop }
    this.#flights.set(key, flight)
    return flight
  }

  /** Ends a conversion that is complete or that no caller waits for. */
  #end(key: string, flight: Flight): void {
    if (this.#flights.get(key) === flight) this.#flights.delete(key)
    flight.stop.abort()
  }

  async #run(bytes: Buffer, target: ImageTarget, signal: AbortSignal): Promise<ImageOutcome> {
    if (!this.#processes) return unavailable('the library is not installed')
    const content = { size: bytes.length, pieces: [bytes] }
    const outcome = await this.#processes.run(target, () => content, { timeoutMs: TIMEOUT_MS, signal })
    switch (outcome.kind) {
      case 'answered':
        return outcomeOf(outcome.answer)
      case 'memory':
        return refused(`it needs more than ${MEMORY_BYTES} bytes of memory`)
      case 'timeout':
        return failed(`it takes longer than ${TIMEOUT_MS / 1000} s`)
      case 'exited':
        return outcome.exit === LIBRARY_MISSING
          ? unavailable('the library cannot be loaded on this host')
          : failed(`the process ended with ${outcome.exit}`)
      case 'unusable':
        return failed(`the process cannot be used: ${outcome.reason}`)
    }
  }
}

/** The converter of this process. */
export const imageConverter = sharedSingleton(
  () => new ImageConverter(),
  converter => converter.close(),
)

/** Returns the digest of an image by its base64. */
export const imageDigest = (base64: string): string => createHash('sha256').update(base64).digest('base64')

const failed = (reason: string): ImageOutcome => ({ ok: false, reason, kind: 'failed' })
const refused = (reason: string): ImageOutcome => ({ ok: false, reason, kind: 'refused' })
const unavailable = (reason: string): ImageOutcome => ({ ok: false, reason, kind: 'unavailable' })

function outcomeOf(answer: ImageAnswer): ImageOutcome {
  if (!answer.ok) return refused(answer.reason)
  const { bytes, media_type, width, height } = answer
  const data_base64 = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('base64')
  return { ok: true, data_base64, media_type, width, height }
}

/** Exit code of a process that cannot load the library. */
const LIBRARY_MISSING = 78

/** Returns the module of the library, with symbolic links resolved; null if it is not installed. */
function findLibrary(): string | null {
  try {
    return realpathSync(fileURLToPath(import.meta.resolve('sharp')))
  } catch {
    return null
  }
}

/** Returns the processes that convert; null if the library is not installed. */
function openProcesses(): ConfinedProcesses<ImageTarget, never, ImageAnswer> | null {
  const library = findLibrary()
  if (library === null) return null
  return new ConfinedProcesses({
    file: new URL('./image-process.ts', import.meta.url),
    args: [library, String(LIBRARY_MISSING)],
    // The library finds its binary and its dependencies in its own node_modules.
    reads: [`${path.resolve(library, '../../..')}/`],
    memoryBytes: MEMORY_BYTES,
    heapMebibytes: 256,
    options: ['--disable-warning=SecurityWarning', '--allow-addons'],
  })
}
