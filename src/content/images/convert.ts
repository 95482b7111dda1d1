import type { ChildProcess } from 'node:child_process'
import { createHash } from 'node:crypto'
import { realpathSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { LRUCache } from 'lru-cache'
import { FairSemaphore } from '#core/base/fair-semaphore.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import { startConfined } from '#core/threads/confined-process.ts'
import type { ImageAnswer, ImageRequest, ImageTarget } from './image-process.ts'

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
/** How long an idle process waits for the next image. */
const IDLE_MS = 30_000

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
  #process: ChildProcess | null = null
  #idleTimer: NodeJS.Timeout | undefined

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
    clearTimeout(this.#idleTimer)
    this.#process?.kill('SIGKILL')
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

  /** Returns the idle process, or starts one. */
  #processFor(): ChildProcess | null {
    clearTimeout(this.#idleTimer)
    if (this.#process) return this.#process
    const child = startProcess()
    child?.once('exit', () => this.#forget(child))
    this.#process = child
    return child
  }

  #forget(child: ChildProcess | null): void {
    if (this.#process === child) this.#process = null
  }

  async #run(bytes: Buffer, target: ImageTarget, signal: AbortSignal): Promise<ImageOutcome> {
    signal.throwIfAborted()
    const child = this.#processFor()
    if (child === null) return unavailable('the library is not installed')
    const ended = new AbortController()
    try {
      return await new Promise<ImageOutcome>(resolve => {
        const { signal: once } = ended
        const kill = (outcome: ImageOutcome) => {
          child.kill('SIGKILL')
          this.#forget(child)
          resolve(outcome)
        }
        const timer = setTimeout(() => kill(failed(`it takes longer than ${TIMEOUT_MS / 1000} s`)), TIMEOUT_MS)
        once.addEventListener('abort', () => clearTimeout(timer))
        signal.addEventListener('abort', () => kill(failed('it is no longer needed')), { signal: once })
        const onExit = (code: number | null, by: NodeJS.Signals | null) => {
          // V8 exits with SIGABRT when its heap is full; the monitor sends SIGUSR2.
          if (by === 'SIGUSR2' || by === 'SIGABRT')
            resolve(refused(`it needs more than ${MEMORY_BYTES} bytes of memory`))
          else if (code === LIBRARY_MISSING) resolve(unavailable('the library cannot be loaded on this host'))
          else resolve(failed(`the process ended with ${by ?? code}`))
        }
        const onMessage = (answer: ImageAnswer) => {
          resolve(outcomeOf(answer))
          if (answer.reusable) return
          child.disconnect()
          this.#forget(child)
        }
        child.on('exit', onExit)
        child.on('message', onMessage)
        once.addEventListener('abort', () => child.off('exit', onExit).off('message', onMessage))
        child.send({ size: bytes.length, target } satisfies ImageRequest, () => {})
        child.stdin?.write(bytes)
      })
    } finally {
      ended.abort()
      this.#idleTimer = setTimeout(() => {
        this.#forget(child)
        if (child.connected) child.disconnect()
      }, IDLE_MS).unref()
    }
  }
}

/** The converter of this process. */
export const imageConverter = processSingleton(
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

const here = (file: string): string => realpathSync(fileURLToPath(new URL(file, import.meta.url)))

/**
 * Starts a process with an empty environment that may read its own code and packages, and no other file. It exits when its
 * channel is closed. Null if the library, an optional package, is not installed.
 */
function startProcess(): ChildProcess | null {
  const library = findLibrary()
  if (library === null) return null
  const monitor = here('../extract/pdf-monitor.ts')
  const args = [String(MEMORY_BYTES), library, monitor, String(LIBRARY_MISSING)]
  return startConfined(here('./image-process.ts'), args, [
    '--disable-warning=SecurityWarning',
    '--max-old-space-size=256',
    '--permission',
    `--allow-fs-read=${here('./')}`,
    `--allow-fs-read=${monitor}`,
    // The library finds its binary and its dependencies in its own node_modules.
    `--allow-fs-read=${path.resolve(library, '../../..')}/`,
    '--allow-worker',
    '--allow-addons',
  ])
}
