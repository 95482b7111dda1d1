import type { Config } from '#core/base/config.ts'
import { type AppError, serviceNotReady } from '#core/base/errors.ts'
import { FairSemaphore } from '#core/base/fair-semaphore.ts'
import { sharedSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'

/**
 * Memory for a file that is read whole and sent to a model, in multiples of its size: the bytes, their base64, the
 * request body as text and as bytes, and garbage of these that is not collected yet.
 */
const MEMORY_FACTOR = 6
/** Maximum wait of a request for memory. */
const WAIT_MS = 30_000

const memory = sharedSingleton(({ config }) => new FairSemaphore(config.FILES_MEMORY_BYTES))

/** Returns the maximum total size of files that one call may read whole. */
export const maxWholeRead = ({ FILES_INLINE_MAX_BYTES, FILES_MEMORY_BYTES }: Config): number =>
  Math.min(FILES_INLINE_MAX_BYTES, Math.floor(FILES_MEMORY_BYTES / MEMORY_FACTOR))

/**
 * Waits until there is memory for `bytes` bytes of files and returns the function that releases it. Acquires at most
 * FILES_MEMORY_BYTES.
 * @param signal waits until it aborts; without it, for at most 30 s
 * @throws SERVICE_NOT_READY, and the reason of `signal`
 */
export async function acquireReadMemory(
  services: Services,
  projectId: string,
  bytes: number,
  signal?: AbortSignal,
): Promise<() => void> {
  const amount = Math.min(MEMORY_FACTOR * bytes, services.config.FILES_MEMORY_BYTES)
  if (signal) return memory(services).acquire(projectId, amount, signal)
  return memory(services).acquireWithin(projectId, amount, { ms: WAIT_MS, late: busy })
}

const busy = (): AppError =>
  serviceNotReady(
    { files: 'busy' },
    { message: 'Not enough memory to read the file (FILES_MEMORY_BYTES)', retryAfterSeconds: 5 },
  )
