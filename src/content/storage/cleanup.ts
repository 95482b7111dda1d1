import { z } from 'zod'
import type { Services } from '#core/base/services.ts'
import { workQueue } from '#core/queues/queue.ts'
import { STAGED_FOR_MS } from './backends.ts'
import { deleteBlob, deleteChunks, listAbandonedUploads, listOrphanedBlobs } from './store.ts'

/** Deletes abandoned uploads and orphaned blobs, every ten minutes. */
export const storageSweepQueue = workQueue('storage.sweep', { message: z.object({}), concern: 'ingestion' })
export const SWEEP_SECONDS = 600

const BLOB_BATCH = 1000
const CHUNK_BATCH = 500

/**
 * Deletes blobs that were staged over an hour ago and never committed, and committed blobs of deleted projects, 500
 * chunks per statement. Stops early when `stopping` aborts. Returns the number of deleted blobs.
 */
export async function sweepBlobs({ pool, clock }: Services, stopping: AbortSignal): Promise<number> {
  const before = new Date(clock.now().getTime() - STAGED_FOR_MS)
  let removed = 0
  for (const list of [
    () => listAbandonedUploads(pool, before, BLOB_BATCH),
    () => listOrphanedBlobs(pool, BLOB_BATCH),
  ]) {
    let ids: readonly string[]
    do {
      ids = await list()
      for (const id of ids) {
        do if (stopping.aborted) return removed
        while ((await deleteChunks(pool, id, CHUNK_BATCH)) === CHUNK_BATCH)
        await deleteBlob(pool, id)
        removed++
      }
    } while (ids.length === BLOB_BATCH)
  }
  return removed
}
