import { extensionPoint } from '#core/base/declarations.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { DatasetRow } from './model.ts'

/** Hooks that run in the transaction that deletes a dataset, under its lock. */
export const datasetDeleteHooks = extensionPoint<(tx: Tx, dataset: DatasetRow) => Promise<void>>('dataset delete hooks')

/** Runs the delete hooks of a dataset. */
export async function runDatasetDeleteHooks(tx: Tx, dataset: DatasetRow): Promise<void> {
  for (const hook of datasetDeleteHooks.all()) await hook(tx, dataset)
}
