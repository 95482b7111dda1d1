import type { Tx } from '../../core/db/writer.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { DatasetRow } from './model.ts'

/** What goes with a dataset in the transaction that deletes it, under its lock. */
export const datasetDeleteHooks = extensionPoint<(tx: Tx, dataset: DatasetRow) => Promise<void>>('ends of datasets')

/** Lets other modules delete what goes with a dataset. */
export async function removeDataset(tx: Tx, dataset: DatasetRow): Promise<void> {
  for (const end of datasetDeleteHooks.all()) await end(tx, dataset)
}
