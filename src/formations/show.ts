import type { Context } from '../core/api/operation.ts'
import type { Queryable } from '../core/db/sql.ts'
import { type FormationRow, formationKind } from './model.ts'
import { shownOutputs } from './outputs.ts'
import { listFormationResources } from './store.ts'

/** A formation as single reads and writes show it to a caller. `once`: outputs that this answer alone shows. */
export async function shownTo(
  { services, caller }: Pick<Context, 'services' | 'caller'>,
  row: FormationRow,
  once: Record<string, string> = {},
  db: Queryable = services.pool,
): Promise<object> {
  const outputs = await shownOutputs(services, caller, row)
  return {
    ...formationKind.present(row),
    outputs: outputs && { ...outputs, ...once },
    resources: await listFormationResources(db, row.id),
  }
}
