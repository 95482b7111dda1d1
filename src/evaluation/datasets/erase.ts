import { contentUnavailable, type EndUserContentEraser, eraseInBatches } from '#control/retention/erasure.ts'
import { eraseStoredResponses } from '#core/api/idempotency.ts'
import { addToDatasetCounts, deleteItems, listItemsOfEndUser, lockDatasets } from './store.ts'

/** Deletes items copied from turns and sessions of an end user; items written by callers remain. */
export const itemContent: EndUserContentEraser = {
  async erase({ services, read, write, endUser, until }) {
    await eraseInBatches(
      limit => listItemsOfEndUser(read, endUser, until, limit),
      found =>
        write(async tx => {
          // Lock order of all item writes: datasets first.
          await lockDatasets(tx, [...new Set(found.map(({ dataset_id }) => dataset_id))])
          const ids = found.map(({ id }) => id)
          const deleted = await deleteItems(tx, ids)
          for (const { dataset_id, count, bytes } of deleted)
            await addToDatasetCounts(tx, dataset_id, { count: -count, bytes: -bytes })
          return {
            dataset_items: deleted.reduce((sum, { count }) => sum + count, 0),
            kept_answers: await eraseStoredResponses(tx, services, endUser.project_id, ids, contentUnavailable()),
          }
        }),
    )
    return 'erased'
  },
}
