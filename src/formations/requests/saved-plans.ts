import { z } from 'zod'
import type { JsonObject } from '#core/api/flatten.ts'
import { raise } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { sealedColumn } from '#core/db/sealed.ts'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { openJson, sealJson } from '#core/secrets/json.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import type { Plan } from '../plans/plan.ts'
import { restoreSecrets, withholdSecrets } from '../plans/sealed.ts'
import type { FormationRow } from '../records/model.ts'
import { projectOfFormation } from '../records/store.ts'
import type { PreparedDeploy } from './accept.ts'

/** Saved plans. A plan is applied only while the formation and its resources are unchanged since it was saved. */

const PLAN_LIFE_MS = 24 * 3_600_000
const DELETED_RETENTION_DAYS = 7
/** Formations per transaction of the sweep, each with its resources, operations and events. */
const FORMATION_BATCH = 50
/** Stored plans per formation; older ones are deleted. */
const MAX_PLANS = 20

const PlanRow = z.strictObject({
  template: z.record(z.string(), z.unknown()),
  sealed_values: z.string().nullable(),
  sealed_parameters: z.string().nullable(),
  digest: z.string(),
})

const sealedFor = (column: string, id: string, project_id: string) => ({
  kind: `formation_plan_${column}`,
  id,
  project_id,
})

export const sealedPlanColumns = ['sealed_values', 'sealed_parameters'].map(column =>
  sealedColumn({ table: 'formation_plans', column, kind: `formation_plan_${column}`, project: projectOfFormation }),
)

const seal = (services: Services, value: object, column: string, id: string, projectId: string): string | null =>
  Object.keys(value).length === 0 ? null : sealJson(services, value, sealedFor(column, id, projectId))

/** Stores a plan for 24 hours and deletes all but the 19 newest others of the formation. By formation_plans_formation. */
export async function savePlan(
  services: Services,
  { id: formationId, project_id, operation_id }: FormationRow,
  { compiled, plan }: PreparedDeploy,
  parameters: Record<string, string>,
): Promise<{ plan_id: string; expires_at: string }> {
  const id = newId('form_plan')
  const expires_at = new Date(services.clock.now().getTime() + PLAN_LIFE_MS).toISOString()
  const { template, values } = withholdSecrets(services, compiled.template)
  await services.pool.query(voidStatement`
    with dropped as (
      delete from formation_plans where id in (
        select id from formation_plans where formation_id = ${formationId} order by created_at desc, id desc offset ${MAX_PLANS - 1}))
    insert into formation_plans (id, formation_id, template, sealed_values, sealed_parameters, digest, expires_at)
    values (${id}, ${formationId}, ${JSON.stringify(template)}::json,
      ${seal(services, values, 'sealed_values', id, project_id)}, ${seal(services, parameters, 'sealed_parameters', id, project_id)},
      ${services.secrets.fingerprint(stateOf(operation_id, plan))}, ${expires_at}::timestamptz)`)
  return { plan_id: id, expires_at }
}

const raiseStale = (id: string, message: string): never =>
  raise('FORMATION_PLAN_STALE', { message, meta: { plan_id: id } })

/**
 * Returns the template and parameters of a saved plan. `check` raises FORMATION_PLAN_STALE if a new plan of them differs.
 * @throws FORMATION_PLAN_STALE, SECRET_NOT_DECRYPTABLE
 */
export async function loadSavedPlan(
  services: Services,
  { id: formationId, project_id, operation_id }: FormationRow,
  id: string,
): Promise<{ template: JsonObject; parameters: Record<string, string>; check(plan: Plan): void }> {
  const row = await services.pool.maybeOne(sql.type(PlanRow)`
    select template, sealed_values, sealed_parameters, digest from formation_plans
    where id = ${id} and formation_id = ${formationId} and expires_at > ${services.clock.now().toISOString()}::timestamptz`)
  if (!row) return raiseStale(id, `Plan ${id} does not exist, has expired or was already applied`)
  const open = <T extends object>(sealed: string | null, column: string, empty: T): T =>
    sealed === null ? empty : openJson<T>(services, sealed, sealedFor(column, id, project_id), `Plan ${id}`)
  return {
    template: restoreSecrets(row.template, open(row.sealed_values, 'sealed_values', {})),
    parameters: open(row.sealed_parameters, 'sealed_parameters', {}),
    check(plan) {
      if (!services.secrets.recognises(row.digest, stateOf(operation_id, plan)))
        raiseStale(id, `The formation or its resources have changed since plan ${id} was saved`)
    },
  }
}

/** Deletes a plan when it is applied. */
export const deletePlan = (db: Queryable, id: string) =>
  db.query(voidStatement`delete from formation_plans where id = ${id}`)

/** Returns the state that a plan depends on, except its template and parameters, as canonical JSON. */
function stateOf(operationId: string, { steps, removed, live }: Plan): string {
  return canonical([
    operationId,
    steps.map(({ declared, tracked, action, desired, changed, live: current }) => {
      const { logical_id, type } = declared
      const open = Object.keys(desired).filter(name => !type.writeOnly.includes(name))
      const values = open.map(name => [name, desired[name], current?.values[name]])
      return [logical_id, tracked?.physical_resource_id, action, changed, values]
    }),
    removed.map(({ id, physical_resource_id: resource }) => [id, resource, live.has(resource ?? '')]),
  ])
}

/** Returns JSON with sorted keys. */
const canonical = (value: unknown): string =>
  JSON.stringify(value, (_key, item: unknown) =>
    typeof item === 'object' && item !== null && !Array.isArray(item)
      ? Object.fromEntries(Object.entries(item).sort(([one], [other]) => (one < other ? -1 : 1)))
      : item,
  )

/** Deletes expired plans, and formations that were deleted more than 7 days ago. Returns the number of deleted rows. */
export const sweepFormations = async (
  { pool, clock }: Pick<Services, 'pool' | 'clock'>,
  stopping?: AbortSignal,
): Promise<number> => {
  const now = clock.now().toISOString()
  const plans = await deleteInBatches(
    // By formation_plans_expiring.
    async limit =>
      (
        await pool.query(voidStatement`
          delete from formation_plans where id in (
            select id from formation_plans where expires_at < ${now}::timestamptz order by expires_at limit ${limit})`)
      ).rowCount,
    stopping,
  )
  const formations = await deleteInBatches(
    // By formations_gone.
    async limit =>
      (
        await pool.query(voidStatement`
          delete from formations where id in (
            select id from formations where status = 'deleted' and updated_at < ${now}::timestamptz - make_interval(days => ${DELETED_RETENTION_DAYS})
            order by updated_at limit ${limit})`)
      ).rowCount,
    stopping,
    FORMATION_BATCH,
  )
  return plans + formations
}
