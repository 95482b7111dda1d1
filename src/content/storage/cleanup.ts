import { z } from 'zod'
import { workQueue } from '../../core/jobs/queue.ts'
import type { Services } from '../../core/process/services.ts'
import { STAGED_FOR_MS } from './backends.ts'
import { deleteBlob, deleteChunks, listAbandonedUploads, listOrphanedBlobs } from './store.ts'

/** What is left behind of uploads, every ten minutes. */
export const storageSweepQueue = workQueue('storage.sweep', { message: z.object({}), concern: 'ingestion' })
export const SWEEP_SECONDS = 600

const BLOBS = 1000
const CHUNKS = 500

/**
 * Deletes blobs that were staged an hour ago and never committed, and committed ones whose files went with their
 * project, a few chunks at a time. Ends early when the worker stops. Returns how many went.
 */
export async function sweepBlobs({ pool, clock }: Services, stopping: AbortSignal): Promise<number> {
  const before = new Date(clock.now().getTime() - STAGED_FOR_MS)
  let removed = 0
  for (const find of [() => listAbandonedUploads(pool, before, BLOBS), () => listOrphanedBlobs(pool, BLOBS)]) {
    let ids: readonly string[]
    do {
      ids = await find()
      for (const id of ids) {
        do if (stopping.aborted) return removed
        while ((await deleteChunks(pool, id, CHUNKS)) === CHUNKS)
        await deleteBlob(pool, id)
        removed++
      }
    } while (ids.length === BLOBS)
  }
  return removed
}
