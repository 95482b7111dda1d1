import { AppError, type RecordedFailure } from '#core/base/errors.ts'
import type { AttemptFields } from '#core/work/attempt.ts'
import { closeDrift } from '../drift/drift-trigger.ts'
import { isDeletedOutside } from '../plans/apply.ts'
import { storeImports } from '../plans/imports.ts'
import { rehearse } from '../plans/rehearsal.ts'
import { formationKind } from '../records/model.ts'
import { listTrackedResources, type TrackedRow, updateOperation } from '../records/store.ts'
import { cleanUp, deleteTracked, forgetResource, removeTracked } from './deploy.ts'
import { eventOf, type OperationAttempt } from './operation-attempt.ts'

type Failure = { logical_id: string; resource_type: string; error: RecordedFailure }

const failureOn = ({ logical_id, resource_type }: TrackedRow, error: RecordedFailure): Failure => ({
  logical_id,
  resource_type,
  error,
})

/**
 * Deletes the resources of a formation in reverse order, then the formation. First tries all deletes in a transaction that is
 * rolled back: if one is refused, nothing is deleted.
 */
export async function runTeardown(attempt: OperationAttempt): Promise<AttemptFields> {
  const { services, formation } = attempt
  const tracked = [...(await listTrackedResources(services.pool, formation.id))].reverse()
  const hasStarted = attempt.events.some(({ action }) => action === 'delete')
  const blockers = hasStarted ? [] : await rehearseDeletes(attempt, tracked)
  if (blockers.length > 0) {
    for (const { logical_id, resource_type, error } of blockers) {
      const row = tracked.find(
        each => each.logical_id === logical_id && each.resource_type === resource_type,
      ) as TrackedRow
      attempt.addPending(eventOf(row, 'delete', row.physical_resource_id, error))
    }
    return settleFailed(attempt, blockers, `Nothing was deleted: ${blockers.length} resources cannot be deleted`)
  }
  const failures: Failure[] = []
  for (const row of tracked) {
    if (row.physical_resource_id === null || row.retain) {
      await attempt.write(async tx => forgetResource(tx, row))
      continue
    }
    const failure = await deleteTracked(attempt, row, 'delete')
    if (failure) failures.push(failureOn(row, failure))
  }
  failures.push(...(await cleanUp(attempt)))
  if (failures.length > 0) return settleFailed(attempt, failures, `${failures.length} resources could not be deleted`)
  await attempt.settle(async tx => {
    await updateOperation(tx, attempt.operation.id, { status: 'succeeded', error: null })
    const row = await formationKind.update(tx, formation.id, { status: 'deleted', error: null, sealed_values: null })
    await storeImports(tx, attempt.projectId, formation.id, { declared: [] })
    await closeDrift(tx, row)
    tx.emit(formationKind, 'deleted', row)
  })
  return { outcome: 'deleted', resources: tracked.length }
}

async function settleFailed(
  attempt: OperationAttempt,
  failures: readonly Failure[],
  message: string,
): Promise<AttemptFields> {
  const error = new AppError('FORMATION_DELETE_FAILED', { message, meta: { failures } }).recorded()
  await attempt.settle(async tx => {
    await updateOperation(tx, attempt.operation.id, { status: 'failed', error })
    const row = await formationKind.update(tx, attempt.formation.id, { status: 'delete_failed', error })
    tx.emit(formationKind, 'delete_failed', row)
  })
  return { outcome: 'delete_failed', failures: failures.length }
}

/** Tries to delete resources in a transaction that is rolled back. Returns the failures. */
async function rehearseDeletes(attempt: OperationAttempt, tracked: readonly TrackedRow[]): Promise<Failure[]> {
  const failures: Failure[] = []
  await rehearse(
    work => attempt.workAttempt.write(work),
    async tx => {
      failures.length = 0
      for (const row of tracked) {
        const { physical_resource_id: id, retain } = row
        if (id === null || retain) continue
        if (isDeletedOutside(attempt.services, row)) continue
        const failure = await removeTracked(attempt, row, id, tx)
        if (failure) failures.push(failureOn(row, failure))
      }
    },
  )
  return failures
}
