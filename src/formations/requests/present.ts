import type { Context } from '#core/api/operation.ts'
import type { Queryable } from '#core/db/sql.ts'
import { presentOutputs } from '../deploys/outputs.ts'
import { type FormationRow, formationKind } from '../records/model.ts'
import { listFormationResources } from '../records/store.ts'

/** Presents a formation with its resources to a caller. `once`: outputs that are returned only in this response. */
export async function presentFormation(
  { services, caller }: Pick<Context, 'services' | 'caller'>,
  row: FormationRow,
  once: Record<string, string> = {},
  db: Queryable = services.pool,
): Promise<object> {
  const outputs = await presentOutputs(services, caller, row)
  return {
    ...formationKind.present(row),
    outputs: outputs && { ...outputs, ...once },
    resources: await listFormationResources(db, row.id),
  }
}
