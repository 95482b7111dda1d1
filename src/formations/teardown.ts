import { AppError, type RecordedFailure } from '../core/api/errors.ts'
import type { AttemptOutcome } from '../core/jobs/work-item.ts'
import { cleanUp, deleteTracked, forgetResource, removeTracked } from './deploy.ts'
import { closeDrift } from './drift-work.ts'
import { keepImports } from './imports.ts'
import { formationKind } from './model.ts'
import { eventOf, type Run } from './run.ts'
import { setOperation, type TrackedRow, trackedResources } from './store.ts'
import { findType } from './types/find.ts'

type Failure = { logical_id: string; resource_type: string; error: RecordedFailure }

const failureOn = ({ logical_id, resource_type }: TrackedRow, error: RecordedFailure): Failure => ({
  logical_id,
  resource_type,
  error,
})

/**
 * Deletes the resources of a formation, the last first, and the formation once all are gone. Before anything is deleted all
 * of it is tried in a transaction that is undone, so that what can be foreseen destroys nothing.
 */
export async function runTeardown(run: Run): Promise<AttemptOutcome> {
  const { services, formation } = run
  const tracked = [...(await trackedResources(services.pool, formation.id))].reverse()
  const begun = run.events.some(({ action }) => action === 'delete')
  const blockers = begun ? [] : await rehearse(run, tracked)
  if (blockers.length > 0) {
    for (const { logical_id, resource_type, error } of blockers) {
      const row = tracked.find(
        each => each.logical_id === logical_id && each.resource_type === resource_type,
      ) as TrackedRow
      run.later(eventOf(row, 'delete', row.physical_resource_id, error))
    }
    return refuse(run, blockers, 'Nothing was deleted: some resources could not be')
  }
  const failures: Failure[] = []
  for (const row of tracked) {
    if (row.physical_resource_id === null || row.retain) {
      await run.write(async tx => forgetResource(tx, row))
      continue
    }
    const failure = await deleteTracked(run, row, 'delete')
    if (failure) failures.push(failureOn(row, failure))
  }
  failures.push(...(await cleanUp(run)))
  if (failures.length > 0) return refuse(run, failures, 'Some resources could not be deleted')
  await run.settle(async tx => {
    await setOperation(tx, run.operation.id, { status: 'succeeded', error: null })
    const row = await formationKind.update(tx, formation.id, { status: 'deleted', error: null, sealed_values: null })
    await keepImports(tx, run.projectId, formation.id, { declared: [] })
    await closeDrift(tx, row)
    tx.emit(formationKind, 'deleted', row)
  })
  return { outcome: 'deleted', resources: tracked.length }
}

async function refuse(run: Run, failures: readonly Failure[], message: string): Promise<AttemptOutcome> {
  const error = new AppError('FORMATION_DELETE_FAILED', { message, meta: { failures } }).recorded()
  await run.settle(async tx => {
    await setOperation(tx, run.operation.id, { status: 'failed', error })
    const row = await formationKind.update(tx, run.formation.id, { status: 'delete_failed', error })
    tx.emit(formationKind, 'delete_failed', row)
  })
  return { outcome: 'delete_failed', failures: failures.length }
}

/** Thrown to undo what was tried. */
class Undone extends Error {}

/** What would keep resources from being deleted. */
async function rehearse(run: Run, tracked: readonly TrackedRow[]): Promise<Failure[]> {
  const failures: Failure[] = []
  try {
    await run.hold.write(async tx => {
      failures.length = 0
      for (const row of tracked) {
        const { physical_resource_id: id, retain } = row
        if (id === null || retain) continue
        if (findType(run.services, row.resource_type)?.registered) continue
        const failure = await removeTracked(run, row, id, tx)
        if (failure) failures.push(failureOn(row, failure))
      }
      throw new Undone()
    })
  } catch (error) {
    if (!(error instanceof Undone)) throw error
  }
  return failures
}
