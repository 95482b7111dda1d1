import type { Config } from '../../config.ts'
import { type AppError, serviceNotReady } from '../../core/api/errors.ts'
import { FairSemaphore } from '../../core/process/fair-semaphore.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'

/**
 * What a file takes that is read whole and sent on, in multiples of its bytes: the bytes, their base64, the body of the
 * request with it as text and as bytes, and what of these is not collected yet.
 */
const TIMES = 6
/** Longest wait of a request for its turn. */
const WAIT_MS = 30_000

const memory = processSingleton(({ config }) => new FairSemaphore(config.FILES_MEMORY_BYTES))

/** The largest files that may be read whole for one call, together: by their own setting and by the memory there is. */
export const maxWholeRead = ({ FILES_INLINE_MAX_BYTES, FILES_MEMORY_BYTES }: Config): number =>
  Math.min(FILES_INLINE_MAX_BYTES, Math.floor(FILES_MEMORY_BYTES / TIMES))

/**
 * Waits until there is memory for so many bytes of files, and gives what returns it. Where they are more than this
 * process has memory for, all of it.
 * @param signal of work that may wait for as long as it lives; a request waits for 30 s
 * @throws SERVICE_NOT_READY, and the reason of `signal`
 */
export async function acquireReadMemory(
  services: Services,
  projectId: string,
  bytes: number,
  signal?: AbortSignal,
): Promise<() => void> {
  const amount = Math.min(TIMES * bytes, services.config.FILES_MEMORY_BYTES)
  if (signal) return memory(services).acquire(projectId, amount, signal)
  return memory(services).acquireWithin(projectId, amount, { ms: WAIT_MS, late: busy })
}

const busy = (): AppError =>
  serviceNotReady(
    { files: 'busy' },
    { message: 'There was no memory to read the file in (FILES_MEMORY_BYTES)', retryAfterSeconds: 5 },
  )
