import { checkStorage } from '../../control/quotas/storage.ts'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { Services } from '../../core/process/services.ts'
import { type DatasetItemInput, type DatasetRow, datasetItemKind, datasetKind } from './model.ts'
import { addToCount, type DatasetSource, insertDatasetItems, type NewItem } from './store.ts'

/** What an item says, and where it comes from. */
export type Draft = DatasetItemInput & Partial<DatasetSource>

/** What an item takes. */
export const itemBytes = ({ input, expected_output = null, metadata = null }: DatasetItemInput): number =>
  Buffer.byteLength(JSON.stringify(input)) +
  (expected_output === null ? 0 : Buffer.byteLength(expected_output)) +
  (metadata === null ? 0 : Buffer.byteLength(JSON.stringify(metadata)))

/** Most that one item may take: what turns take messages up to. */
export const MAX_ITEM_BYTES = 4 * 1024 * 1024

/** Raises what refuses an item: SYSTEM_MESSAGE_NOT_ALLOWED, VALIDATION_FAILED for one that is too large. */
export function checkItem(item: DatasetItemInput, path = ''): void {
  if (item.input.some(({ role }) => role === 'system'))
    raise('SYSTEM_MESSAGE_NOT_ALLOWED', path ? { meta: { path } } : {})
  if (itemBytes(item) > MAX_ITEM_BYTES)
    raiseInvalid({
      code: 'TOO_BIG',
      path: path === '' ? 'input' : path,
      message: 'must be at most 4 MiB with all it says',
    })
}

/** An item as it is written. */
export const newItem = ({
  input,
  expected_output = null,
  metadata = null,
  source_generation_id = null,
  source_conversation_id = null,
  source_actor_id = null,
}: Draft): NewItem => ({
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
 * Makes room for items, or for what an item grows by, in a dataset whose row the caller holds, and counts it in.
 * @throws VALIDATION_FAILED for more than DATASET_MAX_ITEMS or DATASET_MAX_BYTES, QUOTA_STORAGE_EXCEEDED
 */
export async function reserveCapacity(
  tx: Tx,
  services: Services,
  dataset: DatasetRow,
  added: { count: number; bytes: number },
): Promise<void> {
  const { DATASET_MAX_ITEMS: mostItems, DATASET_MAX_BYTES: mostBytes } = services.config
  const refuse = (message: string) => raiseInvalid({ code: 'LIMIT_REACHED', path: '', message })
  if (added.count > 0 && dataset.item_count + added.count > mostItems)
    refuse(`a dataset has at most ${mostItems} items`)
  if (added.bytes > 0 && dataset.item_bytes + added.bytes > mostBytes)
    refuse(`the items of a dataset take at most ${mostBytes} bytes together`)
  if (added.bytes > 0) await checkStorage(services, dataset.project_id, added.bytes, tx)
  await addToCount(tx, dataset.id, added)
}

/** Makes room for items under the lock of their dataset. Raises RESOURCE_NOT_FOUND and what makeRoom does. */
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

/** Adds items to a dataset, all or none. Raises what admitItems does. */
export async function addItems(
  tx: Tx,
  services: Services,
  datasetId: string,
  drafts: readonly Draft[],
): Promise<NewItem[]> {
  const items = drafts.map(newItem)
  const bytes = items.reduce((sum, item) => sum + item.bytes, 0)
  const dataset = await lockAndReserve(tx, services, datasetId, { count: items.length, bytes })
  await insertDatasetItems(tx, dataset, items)
  return items
}
