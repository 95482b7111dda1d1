import { deleteInBatches } from '../../core/jobs/sweeps.ts'
import type { Services } from '../../core/process/services.ts'
import { lockStores } from './lock-store.ts'
import { invalidateExpired, storesWithExpired } from './store.ts'

/** Ends memories whose time is over: reads leave them out before. Returns how many. */
export async function expireMemories(services: Services, stopping: AbortSignal): Promise<number> {
  let retired = 0
  while (!stopping.aborted) {
    const stores = await storesWithExpired(services.pool, 1000)
    if (stores.length === 0) break
    for (const id of stores)
      retired += await deleteInBatches(
        limit =>
          services.write(async tx => {
            await lockStores(tx, [id])
            return invalidateExpired(tx, id, limit)
          }),
        stopping,
      )
  }
  return retired
}
