import { z } from 'zod'
import { raise } from '../core/api/errors.ts'
import type { JsonObject } from '../core/api/flatten.ts'
import { newId } from '../core/api/ids.ts'
import { type Queryable, sql, voidStatement } from '../core/db/sql.ts'
import { deleteInBatches } from '../core/jobs/sweeps.ts'
import type { Services } from '../core/process/services.ts'
import { openJson, sealJson } from '../core/secrets/json.ts'
import { sealedColumn } from '../core/secrets/sealed.ts'
import type { PreparedDeploy } from './accept.ts'
import type { FormationRow } from './model.ts'
import type { Plan } from './plan.ts'
import { restoreSecrets, withholdSecrets } from './sealed.ts'
import { projectOfFormation } from './store.ts'

/** Plans that were saved: applied as they are, or not at all once what they were made of has changed. */

const LIFE_MS = 24 * 3_600_000
const GONE_DAYS = 7
/** Formations that a sweep deletes in one transaction, each with its resources, operations and events. */
const FORMATION_BATCH = 50
/** Plans that are kept of a formation: the newest. */
const MAX_PLANS = 20

const Row = z.strictObject({
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

/** Keeps a plan of a formation for a day, or until there are twenty newer ones. By formation_plans_formation. */
export async function savePlan(
  services: Services,
  { id: formationId, project_id, operation_id }: FormationRow,
  { compiled, plan }: PreparedDeploy,
  parameters: Record<string, string>,
): Promise<{ plan_id: string; expires_at: string }> {
  const id = newId('form_plan')
  const expires_at = new Date(services.clock.now().getTime() + LIFE_MS).toISOString()
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

const stale = (id: string, message: string): never => raise('FORMATION_PLAN_STALE', { message, meta: { plan_id: id } })

/**
 * Returns the template and parameters of a saved plan. `check` raises FORMATION_PLAN_STALE when anything that the plan was made of
 * has changed since.
 */
export async function openPlan(
  services: Services,
  { id: formationId, project_id, operation_id }: FormationRow,
  id: string,
): Promise<{ template: JsonObject; parameters: Record<string, string>; check(plan: Plan): void }> {
  const row = await services.pool.maybeOne(sql.type(Row)`
    select template, sealed_values, sealed_parameters, digest from formation_plans
    where id = ${id} and formation_id = ${formationId} and expires_at > ${services.clock.now().toISOString()}::timestamptz`)
  if (!row) return stale(id, 'The formation has no such plan, or it has expired or was applied')
  const opened = <T>(sealed: string | null, column: string, empty: T): T =>
    sealed === null ? empty : openJson<T>(services, sealed, sealedFor(column, id, project_id), `The plan ${id}`)
  return {
    template: restoreSecrets(row.template, opened(row.sealed_values, 'sealed_values', {})),
    parameters: opened(row.sealed_parameters, 'sealed_parameters', {}),
    check(plan) {
      if (!services.secrets.recognises(row.digest, stateOf(operation_id, plan)))
        stale(id, 'What the plan was made of has changed')
    },
  }
}

/** A plan is applied once. */
export const dropPlan = (db: Queryable, id: string) =>
  db.query(voidStatement`delete from formation_plans where id = ${id}`)

/** All that a plan depends on beside its template and its parameters, as a text. */
function stateOf(operationId: string, { steps, removed, live }: Plan): string {
  return canonical([
    operationId,
    steps.map(({ declared, tracked, action, desired, changed, live: now }) => {
      const { logical_id, type } = declared
      const open = Object.keys(desired).filter(name => !type.writeOnly.includes(name))
      const values = open.map(name => [name, desired[name], now?.values[name]])
      return [logical_id, tracked?.physical_resource_id, action, changed, values]
    }),
    removed.map(({ id, physical_resource_id: resource }) => [id, resource, live.has(resource ?? '')]),
  ])
}

/** JSON in which objects with the same content read the same. */
const canonical = (value: unknown): string =>
  JSON.stringify(value, (_key, item: unknown) =>
    typeof item === 'object' && item !== null && !Array.isArray(item)
      ? Object.fromEntries(Object.entries(item).sort(([one], [other]) => (one < other ? -1 : 1)))
      : item,
  )

/** Deletes plans that have expired, and formations that were deleted a week ago. Returns how many rows went. */
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
            select id from formations where status = 'deleted' and updated_at < ${now}::timestamptz - make_interval(days => ${GONE_DAYS})
            order by updated_at limit ${limit})`)
      ).rowCount,
    stopping,
    FORMATION_BATCH,
  )
  return plans + formations
}
