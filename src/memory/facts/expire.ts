import type { Services } from '#core/base/services.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import { lockStores } from './lock-store.ts'
import { invalidateExpired, listStoresWithExpired } from './store.ts'

/** Invalidates expired memories, which reads already exclude; returns their number. */
export async function expireMemories(services: Services, stopping: AbortSignal): Promise<number> {
  let invalidated = 0
  while (!stopping.aborted) {
    const stores = await listStoresWithExpired(services.pool, 1000)
    if (stores.length === 0) break
    for (const id of stores)
      invalidated += await deleteInBatches(
        limit =>
          services.write(async tx => {
            await lockStores(tx, [id])
            return invalidateExpired(tx, id, limit)
          }),
        stopping,
      )
  }
  return invalidated
}
