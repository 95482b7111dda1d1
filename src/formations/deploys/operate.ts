import { AppError, type RecordedFailure, raise } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import type { Services } from '#core/base/services.ts'
import { sql } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { unavailableCellName } from '#core/services/cell.ts'
import type { AttemptFields, WorkAttempt } from '#core/work/attempt.ts'
import { ClaimLostError } from '#core/work/handler.ts'
import { exponential } from '#core/work/retry.ts'
import { work } from '#core/work/work.ts'
import type { Tx } from '#core/writes/writer.ts'
import { callerForPrincipal } from '#identity/principals/principals.ts'
import { compileTemplate } from '../plans/compile.ts'
import { authoredTemplate, openParameters } from '../plans/sealed.ts'
import { type FormationRow, formationKind } from '../records/model.ts'
import { notifyFormation } from '../records/notifications.ts'
import {
  findOperation,
  listEventsAfter,
  listTrackedResources,
  type OperationWorkColumns,
  operationWorkColumns,
  updateOperation,
} from '../records/store.ts'
import { runDeploy } from './deploy.ts'
import { OperationAttempt } from './operation-attempt.ts'
import { runTeardown } from './teardown.ts'

type OperationWorkAttempt = WorkAttempt<FormationRow, OperationWorkColumns>

/** Records that an operation failed. Its resources are unchanged; the next deploy continues from them. */
async function failOperation(
  tx: Tx,
  formation: FormationRow,
  operationId: string,
  error: RecordedFailure,
): Promise<void> {
  await updateOperation(tx, operationId, { status: 'failed', error })
  const isDelete = formation.status === 'deleting'
  const row = await formationKind.update(tx, formation.id, { status: isDelete ? 'delete_failed' : 'failed', error })
  tx.emit(formationKind, isDelete ? 'delete_failed' : 'failed', row)
  notifyFormation(tx, formation.id, true)
}

/**
 * Returns the caller that requested the operation, with its current permissions and the credential of the request, bound to
 * the project of the formation. `unbound` is bound only if the request was.
 * @throws FORBIDDEN if the requester no longer exists or has no permissions
 */
async function loadCallers(
  services: Services,
  { claim, entity: formation }: OperationWorkAttempt,
): Promise<{ caller: Caller; unbound: Caller }> {
  const { principal, credential } = claim
  // Copies of users and their policies may be late, and calls of an unbound caller may write at home.
  const isAtHome = principal.type === 'user' && !credential.bound
  const found = await callerForPrincipal((isAtHome && services.home) || services, principal, formation.project_id)
  if (!found)
    return raise('FORBIDDEN', {
      message: 'Requester of the operation no longer exists or has no permissions',
      meta: { action: 'formations:UpdateFormation' },
    })
  const { bound, type, id } = credential
  const caller = type === 'run' ? found : { ...found, credential: { ...found.credential, type, id } }
  return { caller, unbound: bound ? caller : { ...caller, project_id: null } }
}

async function runOperation(attempt: OperationWorkAttempt): Promise<AttemptFields> {
  const { services, entity: formation, claim } = attempt
  const operation = await findOperation(services.pool, claim.id)
  if (!operation) throw new ClaimLostError()
  if (operation.status === 'pending')
    await attempt.write(tx => updateOperation(tx, operation.id, { status: 'running', error: null }))
  await injectFault(services, 'formation_claimed')
  const { caller, unbound } = await loadCallers(services, attempt)
  const events = await listEventsAfter(services.pool, operation.id, 0)
  const operationAttempt = new OperationAttempt({ workAttempt: attempt, operation, caller, unbound, events })
  if (operation.operation_type === 'delete') return runTeardown(operationAttempt)
  const parameters = openParameters(services, operation.id, formation.project_id, operation.sealed_parameters)
  const tracked = await listTrackedResources(services.pool, formation.id)
  const existing = new Set(tracked.flatMap(row => (row.physical_resource_id ? [row.logical_id] : [])))
  const { compiled, problems } = await compileTemplate(services, authoredTemplate(services, formation), {
    parameters,
    existing,
    tenant: formation.project_id,
  })
  if (!compiled) return raise('VALIDATION_FAILED', { message: problems[0]?.message, meta: { problems } })
  return runDeploy(operationAttempt, compiled)
}

/** Runs operations of formations, one at a time per formation. */
export const operationWork = work({
  name: 'formation.operate',
  concern: 'orchestration',
  entity: formationKind,
  table: 'formation_attempts',
  entityColumn: 'formation_id',
  columns: operationWorkColumns,
  ids: ({ id, project_id }, claim) => ({ formation_id: id, operation_id: claim.id, project_id }),
  leaseSeconds: 30,
  concurrency: 4,
  retry: { attempts: 3, losses: 2, delayMs: exponential(1000) },
  isFinal: error => error instanceof AppError && unavailableCellName(error) === null,
  sweep: { seconds: 15, dueIf: sql.fragment`exists (select from formation_attempts)` },
  run: runOperation,
  async fail(tx, { entity, claim, error }) {
    const failure = error instanceof AppError ? error : new AppError('INTERNAL_ERROR')
    await failOperation(tx, entity, claim.id, failure.recorded())
    return undefined
  },
})
