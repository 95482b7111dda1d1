import { removeRow } from '../../core/api/dependents.ts'
import { type Queryable, sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/write.ts'
import type { Inheritors } from '../../identity/projects/default-route.ts'
import type { DatasetRow } from '../datasets/model.ts'
import { type EvalRow, evalKind } from './model.ts'

/** Evals with a judge that goes by the default route of their project. By evals_inheriting. */
export const inheritingEvals: Inheritors = {
  kind: 'eval',
  ids: project => sql.fragment`select id from evals where project_id = ${project} and inherits_route`,
}

/** Deletes the evals of a dataset that is deleted, with their events. By evals_dataset. */
export async function removeEvalsOf(tx: Tx, { id }: DatasetRow): Promise<void> {
  const evals = await tx.any(evalKind.sql`
    select ${evalKind.columns} from evals t where t.dataset_id = ${id} order by t.id for update`)
  for (const row of evals) await removeRow(tx, evalKind, row)
}

/** The evals of a project, oldest first. By evals_project. */
export const evalsOf = (db: Queryable, projectId: string): Promise<readonly EvalRow[]> =>
  db.any(evalKind.sql`select ${evalKind.columns} from evals t where t.project_id = ${projectId} order by t.id`)
