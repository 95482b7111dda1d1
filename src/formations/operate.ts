import { AppError, type RecordedFailure, raise } from '../core/api/errors.ts'
import type { Tx } from '../core/db/writer.ts'
import type { Caller } from '../core/iam/caller.ts'
import type { JobContext } from '../core/jobs/handler.ts'
import {
  type ActiveClaim,
  type AttemptOutcome,
  claimOrReschedule,
  leaseTimings,
  processClaim,
} from '../core/jobs/work-item.ts'
import { injectFault } from '../core/process/fault-injection.ts'
import type { Services } from '../core/process/services.ts'
import { callerForPrincipal } from '../identity/principals.ts'
import { runDeploy } from './deploy.ts'
import { type FormationRow, formationKind } from './model.ts'
import { tellOfFormation } from './news.ts'
import { type FormationMessage, formationQueue } from './queue.ts'
import { Run } from './run.ts'
import { authoredForm, openParameters } from './sealed.ts'
import {
  findOperation,
  formationAttempts,
  formationEventsAfter,
  type OperationClaim,
  type OperationRow,
  setOperation,
  trackedResources,
} from './store.ts'
import { runTeardown } from './teardown.ts'
import { compileTemplate } from './template/compile.ts'

/** Time after which a worker that does not renew it has lost its operation. */
const LEASE_MS = 30_000
/** Attempts of an operation that fails unexpectedly or loses its worker. */
const MAX_TRIES = 3

type Taken = { claim: OperationClaim; formation: FormationRow; operation: OperationRow }

async function claimOperation(tx: Tx, message: FormationMessage): Promise<Taken | null> {
  const formation = await formationKind.find(tx, message.formation_id, true)
  const operation = await findOperation(tx, message.operation_id)
  if (!formation || !operation) return null
  const named = { entity: formation.id, id: operation.id }
  const claim = await claimOrReschedule(tx, formationAttempts, named, { leaseMs: LEASE_MS }, formationQueue, message)
  if (claim === 'held') return null
  if (!claim) {
    await abandonOperation(tx, message)
    return null
  }
  if (operation.status === 'pending') await setOperation(tx, operation.id, { status: 'running', error: null })
  return { claim, formation, operation }
}

/** Fails an operation that no live worker holds. Its resources stay as they are; the next deploy continues from there. */
export async function abandonOperation(
  tx: Tx,
  { formation_id, operation_id }: Omit<FormationMessage, 'project_id'>,
): Promise<void> {
  const formation = await formationKind.find(tx, formation_id, true)
  if (formation && (await formationAttempts.endIdle(tx, { entity: formation_id, id: operation_id })))
    await fail(tx, formation, operation_id, new AppError('INTERNAL_ERROR').recorded())
}

async function fail(tx: Tx, formation: FormationRow, operationId: string, error: RecordedFailure): Promise<void> {
  await setOperation(tx, operationId, { status: 'failed', error })
  const deleting = formation.status === 'deleting'
  const row = await formationKind.update(tx, formation.id, { status: deleting ? 'delete_failed' : 'failed', error })
  tx.emit(formationKind, deleting ? 'delete_failed' : 'failed', row)
  tellOfFormation(tx, formation.id, true)
}

/**
 * The caller that requested the operation, with its current permissions and the credential of the request, bound to the project
 * of the formation. `unbound`: bound only if the request was.
 */
async function callersOf(
  services: Services,
  { claim, formation }: Taken,
): Promise<{ caller: Caller; unbound: Caller }> {
  const { principal, credential } = claim
  const found = await callerForPrincipal(services, principal, formation.project_id)
  if (!found)
    return raise('FORBIDDEN', {
      message: 'The caller that requested the operation no longer exists or has no permissions',
      meta: { action: 'formations:UpdateFormation' },
    })
  const { bound, type, id } = credential
  const caller = type === 'run' ? found : { ...found, credential: { ...found.credential, type, id } }
  return { caller, unbound: bound ? caller : { ...caller, project_id: null } }
}

async function work(services: Services, taken: Taken, hold: ActiveClaim<OperationClaim>): Promise<AttemptOutcome> {
  const { formation, operation } = taken
  await injectFault(services, 'formation_claimed')
  const { caller, unbound } = await callersOf(services, taken)
  const events = await formationEventsAfter(services.pool, operation.id, 0)
  const run = new Run({ services, formation, operation, caller, unbound, hold, events, leaseMs: LEASE_MS })
  if (operation.operation_type === 'delete') return runTeardown(run)
  const parameters = openParameters(services, operation.id, formation.project_id, operation.sealed_parameters)
  const tracked = await trackedResources(services.pool, formation.id)
  const existing = new Set(tracked.flatMap(row => (row.physical_resource_id ? [row.logical_id] : [])))
  const { compiled, problems } = await compileTemplate(services, authoredForm(services, formation), {
    parameters,
    existing,
  })
  if (!compiled) return raise('VALIDATION_FAILED', { message: problems[0]?.message, meta: { problems } })
  return runDeploy(run, compiled)
}

/** Makes one attempt of an operation, unless another worker holds it or it has ended. */
export async function runOperation(message: FormationMessage, context: JobContext): Promise<void> {
  const { services } = context
  const taken = await services.write(tx => claimOperation(tx, message))
  if (!taken) return
  const { claim, formation, operation } = taken
  await processClaim(context, {
    what: 'formation',
    ids: { formation_id: formation.id, operation_id: operation.id, project_id: formation.project_id },
    attempts: formationAttempts,
    claim,
    lease: leaseTimings(LEASE_MS),
    lock: tx => formationKind.find(tx, formation.id, true),
    work: hold => work(services, taken, hold),
    async fail(error) {
      if (!(error instanceof AppError))
        services.log.error({ err: error, formation_id: formation.id }, 'operation of a formation failed')
      const last = error instanceof AppError || claim.failures + claim.losses + 1 >= MAX_TRIES
      return services.write(async tx => {
        const row = await formationKind.find(tx, formation.id, true)
        if (!row) return { outcome: 'claim_lost' }
        if (last) {
          if (!(await formationAttempts.end(tx, claim))) return { outcome: 'claim_lost' }
          const failure = error instanceof AppError ? error.recorded() : new AppError('INTERNAL_ERROR').recorded()
          await fail(tx, row, operation.id, failure)
          return { outcome: 'failed', code: failure.code }
        }
        const delayMs = 1000 * 2 ** claim.failures
        if (!(await formationAttempts.requeue(tx, claim, { delayMs, failed: true }))) return { outcome: 'claim_lost' }
        tx.send(formationQueue, message, { startAfter: new Date(Date.now() + delayMs) })
        return { outcome: 'failed', decision: `retry in ${delayMs} ms` }
      })
    },
  })
}
