import { removeRow } from '#core/api/dependents.ts'
import { sql } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { DefaultRouteUsers } from '#identity/projects/default-model-route.ts'
import type { DatasetRow } from '../datasets/model.ts'
import { evalKind } from './model.ts'

/** Evals with a model scorer that uses the default route of their project (index evals_inheriting). */
export const listDefaultRouteEvals: DefaultRouteUsers = {
  kind: 'eval',
  ids: project => sql.fragment`select id from evals where project_id = ${project} and inherits_route`,
}

/** Deletes the evals of a deleted dataset and emits their events (index evals_dataset). */
export async function removeEvalsOfDataset(tx: Tx, { id }: DatasetRow): Promise<void> {
  const evals = await tx.any(evalKind.sql`
    select ${evalKind.columns} from evals t where t.dataset_id = ${id} order by t.id for update`)
  for (const row of evals) await removeRow(tx, evalKind, row)
}
