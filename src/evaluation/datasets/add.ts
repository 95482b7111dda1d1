import { checkStorage } from '#control/quotas/storage.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type DatasetItemInput, type DatasetRow, datasetItemKind, datasetKind } from './model.ts'
import { addToDatasetCounts, type DatasetSource, insertDatasetItems, type NewItem } from './store.ts'

/** An item to add, with its source. */
export type ItemDraft = DatasetItemInput & Partial<DatasetSource>

/** Returns the size of an item. */
export const itemBytes = ({ input, expected_output = null, metadata = null }: DatasetItemInput): number =>
  Buffer.byteLength(JSON.stringify(input)) +
  (expected_output === null ? 0 : Buffer.byteLength(expected_output)) +
  (metadata === null ? 0 : Buffer.byteLength(JSON.stringify(metadata)))

/** Largest size of an item, equal to the limit of messages of a turn. */
export const MAX_ITEM_BYTES = 4 * 1024 * 1024

/** Largest total size of the items that one request copies. */
export const MAX_COPIED_BYTES = 32 * 1024 * 1024

/** @throws SYSTEM_MESSAGE_NOT_ALLOWED; VALIDATION_FAILED for more than 4 MiB */
export function checkItem(item: DatasetItemInput, path = ''): void {
  if (item.input.some(({ role }) => role === 'system'))
    raise('SYSTEM_MESSAGE_NOT_ALLOWED', path ? { meta: { path } } : {})
  if (itemBytes(item) > MAX_ITEM_BYTES)
    raiseInvalid({
      code: 'TOO_BIG',
      path: path === '' ? 'input' : path,
      message: 'must be at most 4 MiB, including expected_output and metadata',
    })
}

/** Returns the row of a new item. */
export const newItem = ({
  input,
  expected_output = null,
  metadata = null,
  source_generation_id = null,
  source_conversation_id = null,
  source_actor_id = null,
}: ItemDraft): NewItem => ({
  id: newId(datasetItemKind.prefix),
  input,
  expected_output,
  metadata,
  source_generation_id,
  source_conversation_id,
  source_actor_id,
  bytes: itemBytes({ input, expected_output, metadata }),
})

/**
 * Checks the limits for new items, or for the growth of an item, and adds it to the counts of a dataset. The caller
 * holds the row lock.
 * @throws VALIDATION_FAILED for more than DATASET_MAX_ITEMS or DATASET_MAX_BYTES, QUOTA_STORAGE_EXCEEDED
 */
export async function reserveCapacity(
  tx: Tx,
  services: Services,
  dataset: DatasetRow,
  added: { count: number; bytes: number },
): Promise<void> {
  const { DATASET_MAX_ITEMS: maxItems, DATASET_MAX_BYTES: maxBytes } = services.config
  const raiseLimit = (message: string) => raiseInvalid({ code: 'LIMIT_REACHED', path: '', message })
  if (added.count > 0 && dataset.item_count + added.count > maxItems)
    raiseLimit(`Dataset would exceed ${maxItems} items`)
  if (added.bytes > 0 && dataset.item_bytes + added.bytes > maxBytes)
    raiseLimit(`Dataset would exceed ${maxBytes} bytes of items`)
  if (added.bytes > 0) await checkStorage(services, dataset.project_id, added.bytes, tx)
  await addToDatasetCounts(tx, dataset.id, added)
}

/**
 * Locks a dataset and reserves capacity in it.
 * @throws RESOURCE_NOT_FOUND, and the errors of reserveCapacity
 */
export async function lockAndReserve(
  tx: Tx,
  services: Services,
  datasetId: string,
  { count, bytes }: { count: number; bytes: number },
): Promise<DatasetRow> {
  const dataset = await datasetKind.lock(tx, datasetId)
  await reserveCapacity(tx, services, dataset, { count, bytes })
  return dataset
}

/**
 * Adds items to a dataset, all or none.
 * @throws the errors of lockAndReserve
 */
export async function addItems(
  tx: Tx,
  services: Services,
  datasetId: string,
  drafts: readonly ItemDraft[],
): Promise<NewItem[]> {
  const items = drafts.map(newItem)
  const bytes = items.reduce((sum, item) => sum + item.bytes, 0)
  const dataset = await lockAndReserve(tx, services, datasetId, { count: items.length, bytes })
  await insertDatasetItems(tx, dataset, items)
  return items
}
