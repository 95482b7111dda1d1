import type { Values } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { requireReferences } from '#core/api/references.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { batchByKey } from '#core/db/batcher.ts'
import type { ExistingRow } from '#core/resources/resource.ts'
import type { Tx } from '#core/writes/writer.ts'
import { requirePlaybook } from './change.ts'
import { caseExecutions } from './executions.ts'
import { type CaseInput, type CaseRow, caseKind } from './model.ts'
import { allocateNumbers, findCaseByExternalId, lockExternalId } from './store.ts'
import { actorOf, appendTimeline, byCaller } from './timeline.ts'

/** Allocates case numbers. Concurrent creates share a statement, and none waits for the commit of another. */
const caseNumbers = processSingleton(({ pool }) =>
  batchByKey<string, null, number>(async (project, { length }) => {
    const last = await allocateNumbers(pool, project, length)
    return Array.from({ length }, (_, index) => last - length + 1 + index)
  }),
)

/** An existing case with the external id of a new case, or the number of the new case. */
type PreparedCase = { existing: CaseRow } | { number: number }

/** Prepares the creation of a case: allocates its number unless a case with its external id exists. */
export async function prepareCase(
  services: Services,
  project: string,
  { external_id, input, start_execution = false, playbook_id }: CaseInput,
): Promise<PreparedCase> {
  if (input !== undefined && !start_execution)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'input', message: 'is allowed only with start_execution' })
  if (start_execution && playbook_id == null)
    raiseInvalid({ code: 'REQUIRED', path: 'playbook_id', message: 'is required with start_execution' })
  const existing = external_id == null ? null : await findCaseByExternalId(services.pool, project, external_id)
  return existing ? { existing } : { number: await caseNumbers(services)(project, null) }
}

/** Inserts a case, or returns the existing case with the external id unchanged. Emits nothing. */
async function insertOrFindCase(
  tx: Tx,
  values: Values<CaseRow> & { project_id: string },
  prepared: PreparedCase | null,
): Promise<CaseRow | ExistingRow<CaseRow>> {
  if (prepared && 'existing' in prepared) return prepared
  const { project_id, external_id } = values
  if (external_id != null) {
    // A concurrent create with the same external id waits here for the other's commit.
    await lockExternalId(tx, project_id, external_id)
    const existing = await findCaseByExternalId(tx, project_id, external_id)
    if (existing) return { existing }
  }
  const number = prepared?.number ?? (await allocateNumbers(tx, project_id, 1))
  return caseKind.insert(tx, { ...values, number })
}

export type CaseCreation = Pick<Context, 'tx' | 'services' | 'caller' | 'allow'> & { project: string }

/**
 * Creates a case, or returns the existing case with its external id. With `start_execution`, starts an execution of the
 * playbook of a new case in the same transaction. Without a prepared number, takes and locks the next one.
 * @throws ACTOR_NOT_FOUND, RESOURCE_NOT_FOUND, VALIDATION_FAILED, and errors of the execution start
 */
export async function createCase(
  context: CaseCreation,
  { project_id: _project, start_execution = false, input, ...fields }: CaseInput,
  prepared: PreparedCase | null,
): Promise<CaseRow | ExistingRow<CaseRow>> {
  const { tx, caller, project } = context
  await requireReferences(tx, caseKind, project, fields)
  await requirePlaybook(tx, project, fields.playbook_id)
  const values = { ...fields, project_id: project, created_by: actorOf(caller) }
  const created = await insertOrFindCase(tx, values, prepared)
  if ('existing' in created) return created
  tx.emit(caseKind, 'created', created)
  const { title, priority, external_id } = created
  appendTimeline(tx, created, byCaller(caller), [{ kind: 'created', data: { title, priority, external_id } }])
  if (!start_execution) return created
  const [executions] = caseExecutions.all()
  return executions.start(context, created, input ?? {})
}
