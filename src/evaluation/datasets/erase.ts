import { contentUnavailable, type EndUserContentEraser, eraseInBatches } from '../../control/retention/erasure.ts'
import { eraseStoredResponses } from '../../core/api/idempotency.ts'
import { addToCount, deleteItems, itemsOfEndUser, lockDatasets } from './store.ts'

/** Items that were copied from what an end user said or was answered are deleted; those of callers' own stay. */
export const itemContent: EndUserContentEraser = {
  async erase({ services, read, write, endUser, until }) {
    await eraseInBatches(
      limit => itemsOfEndUser(read, endUser, until, limit),
      found =>
        write(async tx => {
          // As whoever writes items: their dataset first.
          await lockDatasets(tx, [...new Set(found.map(({ dataset_id }) => dataset_id))])
          const ids = found.map(({ id }) => id)
          const gone = await deleteItems(tx, ids)
          for (const { dataset_id, count, bytes } of gone)
            await addToCount(tx, dataset_id, { count: -count, bytes: -bytes })
          return {
            dataset_items: gone.reduce((sum, { count }) => sum + count, 0),
            kept_answers: await eraseStoredResponses(tx, services, endUser.project_id, ids, contentUnavailable()),
          }
        }),
    )
    return 'erased'
  },
}
