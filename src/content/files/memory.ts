import type { Config } from '../../config.ts'
import { type AppError, notReady } from '../../core/api/errors.ts'
import { perProcess } from '../../core/process/per-process.ts'
import type { Services } from '../../core/process/services.ts'
import { Shares } from '../../core/process/shares.ts'

/**
 * What a file takes that is read whole and sent on, in multiples of its bytes: the bytes, their base64, the body of the
 * request with it as text and as bytes, and what of these is not collected yet.
 */
const TIMES = 6
/** Longest wait of a request for its turn. */
const WAIT_MS = 30_000

const memory = perProcess(({ config }) => new Shares(config.FILES_MEMORY_BYTES))

/** The largest files that may be read whole for one call, together: by their own setting and by the memory there is. */
export const wholeLimit = ({ FILES_INLINE_MAX_BYTES, FILES_MEMORY_BYTES }: Config): number =>
  Math.min(FILES_INLINE_MAX_BYTES, Math.floor(FILES_MEMORY_BYTES / TIMES))

/**
 * Waits until there is memory for so many bytes of files, and gives what returns it. Where they are more than this
 * process has memory for, all of it.
 * @param signal of work that may wait for as long as it lives; a request waits for 30 s
 * @throws SERVICE_NOT_READY, and the reason of `signal`
 */
export async function takeMemory(
  services: Services,
  projectId: string,
  bytes: number,
  signal?: AbortSignal,
): Promise<() => void> {
  const amount = Math.min(TIMES * bytes, services.config.FILES_MEMORY_BYTES)
  if (signal) return memory(services).take(projectId, amount, signal)
  return memory(services).takeWithin(projectId, amount, { ms: WAIT_MS, late: busy })
}

const busy = (): AppError =>
  notReady(
    { files: 'busy' },
    { message: 'There was no memory to read the file in (FILES_MEMORY_BYTES)', retryAfterSeconds: 5 },
  )
