import { AppError, type RecordedFailure, raise, raiseInvalid } from '../core/api/errors.ts'
import type { JsonObject } from '../core/api/flatten.ts'
import { isTransient } from '../core/db/database-errors.ts'
import type { Tx } from '../core/db/writer.ts'
import type { AttemptOutcome } from '../core/jobs/work-item.ts'
import { injectFault } from '../core/process/fault-injection.ts'
import { appliedState, createResource, deleteResource, joinsTransaction, typeOf, updateResource } from './apply.ts'
import { importedValues } from './imports.ts'
import { findLive, liveResources } from './live.ts'
import { formationKind } from './model.ts'
import { HIDDEN, outputsOf, resolvedMetadata } from './outputs.ts'
import { matchResources, namesOf } from './plan.ts'
import { eventOf, type Note, operationFailure, type Run } from './run.ts'
import { sealedAnswer } from './sealed.ts'
import { type ResourceStep, stepFor } from './step.ts'
import {
  arrangeResources,
  changeTracked,
  insertPending,
  replacingResources,
  setOperation,
  type TrackedRow,
  trackedResources,
} from './store.ts'
import type { CompiledTemplate, DeclaredResource } from './template/compile.ts'
import type { TemplateScope } from './template/expressions.ts'
import { findType } from './types/find.ts'
import type { Live } from './types/model.ts'

/**
 * Makes the resources of a formation what its template says. Each change is committed together with what the formation keeps
 * of it and with its event, so that a worker that is killed leaves nothing that another one would not go on from.
 */
export async function runDeploy(run: Run, compiled: CompiledTemplate): Promise<AttemptOutcome> {
  const { services } = run
  const state = await track(run, compiled)
  const failed = run.events.find(({ status, action }) => status === 'failed' && FORWARD.includes(action as never))
  const failure = failed
    ? {
        ...(failed.error as RecordedFailure),
        meta: { logical_id: failed.logical_id, resource_type: failed.resource_type, ...failed.error?.meta },
      }
    : await applyAll(run, compiled, state)
  if (failure) {
    await rollBack(run, [...state.of.values()])
    await run.settle(async tx => {
      await setOperation(tx, run.operation.id, { status: 'failed', error: failure })
      const row = await formationKind.update(tx, run.formation.id, { status: 'failed', error: failure })
      tx.emit(formationKind, 'failed', row)
    })
    return { outcome: 'failed', code: failure.code }
  }
  await injectFault(services, 'formation_applied')
  await removeUndeclared(run, state.others)
  const left = cleanupFailure(await cleanUp(run))
  const kept = await outputsOf(run, compiled, state.of, state.scope)
  const resolved_metadata = resolvedMetadata(compiled, state.scope)
  await run.settle(async tx => {
    await setOperation(tx, run.operation.id, {
      status: 'succeeded',
      error: left,
      sealed_answer: sealedAnswer(run, kept.once),
    })
    const row = await formationKind.update(tx, run.formation.id, {
      status: 'active',
      error: left,
      outputs: kept.outputs,
      read_outputs: kept.read,
      resolved_metadata,
      resolved_parameters: shownParameters(compiled, run.formation.resolved_parameters),
    })
    tx.emit(formationKind, 'deployed', row)
  })
  return { outcome: 'succeeded', events: run.events.length }
}

/** Events of what goes forward; a failed one ends the deploy. */
const FORWARD = ['create', 'update', 'replace'] as const

type State = {
  /** By logical id. */
  of: Map<string, TrackedRow>
  others: TrackedRow[]
  live: ReadonlyMap<string, Live>
  scope: TemplateScope
}

/** Has every declared resource tracked before anything is made of it. */
async function track(run: Run, compiled: CompiledTemplate): Promise<State> {
  const { services, formation, projectId } = run
  const { pool } = services
  const tracked = await trackedResources(pool, formation.id)
  const { of, others, problems } = matchResources(compiled, tracked)
  if (problems.length > 0) raiseInvalid(problems)
  const placed = compiled.declared.map((declared, position) => ({
    declared,
    place: placeOf(declared, position),
    row: of.get(declared.logical_id),
  }))
  const known = placed.flatMap(({ row, place }) => (row && isMisplaced(row, place) ? [{ ...place, id: row.id }] : []))
  const unknown = placed.filter(({ row }) => !row)
  if (known.length + unknown.length > 0) {
    const added = await run.write(async tx => {
      await arrangeResources(tx, known)
      return insertPending(
        tx,
        formation.id,
        unknown.map(({ place, declared }) => ({ ...place, resource_type: declared.type.name })),
      )
    })
    for (const row of added) of.set(row.logical_id, row)
    for (const { row, place } of placed) if (row) of.set(place.logical_id, { ...row, ...place })
  }
  const imports = await importedValues(pool, projectId, compiled)
  const scope = namesOf(compiled, imports, name => {
    const id = of.get(name)?.physical_resource_id
    return id ? { text: id } : 'unknown'
  })
  return { of, others, live: await liveResources(services, pool, tracked, projectId), scope }
}

const placeOf = ({ logical_id, retain, prevent_destroy }: DeclaredResource, position: number) => ({
  logical_id,
  position,
  retain,
  prevent_destroy,
})

const isMisplaced = (row: TrackedRow, place: ReturnType<typeof placeOf>): boolean =>
  (Object.keys(place) as (keyof typeof place)[]).some(name => row[name] !== place[name])

/** Applies the resources in their order. Returns the failure of the one that ended it. */
async function applyAll(run: Run, { declared }: CompiledTemplate, state: State): Promise<RecordedFailure | null> {
  for (const each of declared) {
    const tracked = state.of.get(each.logical_id) as TrackedRow
    if (run.did(tracked, 'create', 'update', 'replace', 'no-op')) continue
    const id = tracked.physical_resource_id
    const live = (id && state.live.get(id)) || null
    const step = repeated(run, await stepFor(run.services, each, tracked, live, state.scope))
    if (step.action === 'no-op') {
      run.later(eventOf(tracked, 'no-op', id))
      continue
    }
    const failure = await applyStep(run, { ...step, tracked }, after => state.of.set(each.logical_id, after))
    if (failure)
      return { ...failure, meta: { logical_id: each.logical_id, resource_type: each.type.name, ...failure.meta } }
  }
  return null
}

type TrackedStep = ResourceStep & { tracked: TrackedRow }

/**
 * A step as it is done: one that was planned as a change and has nothing left to change is done again where an earlier try may
 * have done it, and lost its worker before that was noted.
 */
function repeated({ operation: { plan }, hold }: Run, step: ResourceStep): ResourceStep {
  const planned = plan?.find(({ logical_id }) => logical_id === step.declared.logical_id)
  if (step.action !== 'no-op' || hold.claim.claims === 1 || planned?.action !== 'update') return step
  const changed = Object.keys(planned.diff?.desired ?? {}).filter(name => name in step.desired)
  const again: ResourceStep = { ...step, action: 'update', changed }
  return isOutside(again) ? again : step
}

/** Does one step; what it makes of the tracked resource is given to `done`. Returns its failure. */
async function applyStep(
  run: Run,
  step: TrackedStep,
  done: (after: TrackedRow) => void,
): Promise<RecordedFailure | null> {
  const { tracked, declared } = step
  const action = step.action === 'recreate' ? 'create' : (step.action as 'create' | 'update' | 'replace')
  const key = keyOf(run, step)
  const work = async (tx?: Tx) => {
    refuseProblems(step)
    if (!run.operation.force_conflicts) refuseOverwrites(step)
    return step.action === 'update' ? updateResource(run, step, { tx, key }) : createResource(run, step, { tx, key })
  }
  const failed = (error: unknown): RecordedFailure => operationFailure(run, refusal(error), declared.logical_id)
  // What has transactions of its own, and what a handler makes, is made before it is noted: its key finds it again.
  const outside = isOutside(step) ? await work().catch(failed) : null
  await injectFault(run.services, 'formation_called')
  const failure = await run.write(async (tx, note) => {
    const applied = outside ?? (await (isOneCall(step) ? work(tx) : tx.nested(work)).catch(failed))
    if ('id' in applied) {
      done(noteApplied(run, step, action, applied, note))
      return null
    }
    const values = { status: 'failed' as const, refusals: tracked.refusals + 1 }
    note(eventOf(tracked, action, tracked.physical_resource_id, applied), { id: tracked.id, values })
    return applied
  })
  await injectFault(run.services, 'formation_step')
  return failure
}

/** The refusal of a call, which has undone what the call had written; raises what is none. */
function refusal(error: unknown): AppError {
  if (!(error instanceof AppError) || isTransient(error)) throw error
  return error
}

/** Whether a step is one call, which undoes by itself what it wrote when it is refused. */
const isOneCall = ({ declared: { type }, desired }: ResourceStep): boolean =>
  type.registered !== null ||
  Object.keys(desired).every(name => !type.later.has(name) && !(type.operations.tags && name === 'tags'))

/**
 * What calls with transactions of their own are known by when they are repeated. That of a create holds over operations: one
 * that lost its workers may have made the resource.
 */
function keyOf({ operation }: Run, { action, tracked, declared }: TrackedStep): string {
  const { id, refusals } = tracked
  if (action === 'create') return declared.type.registered ? `${id}.create` : `${id}.create.${refusals}`
  return action === 'update' ? `${id}.${operation.id}` : `${id}.${operation.id}.create`
}

/** Raises VALIDATION_FAILED for a step that is refused before anything is called. */
function refuseProblems({ problems }: ResourceStep): void {
  if (problems.length > 0) raiseInvalid([...problems])
}

/** Raises FORMATION_CONFLICT for what others have changed since the operation was accepted. */
function refuseOverwrites({ declared: { logical_id }, overwritten }: ResourceStep): void {
  if (overwritten.length === 0) return
  const conflicts = overwritten.map(field => ({ logical_id, field, changed_by: null, changed_at: null }))
  raise('FORMATION_CONFLICT', {
    message: `${overwritten[0]} of ${logical_id} was changed by somebody else since the last deploy`,
    meta: { conflicts },
  })
}

function isOutside({ declared: { type }, action }: ResourceStep): boolean {
  if (type.registered) return true
  const { create: creation, update: change } = type.operations
  return action === 'update'
    ? !(change ? joinsTransaction(change) : joinsTransaction(creation))
    : !joinsTransaction(creation)
}

function noteApplied(
  run: Run,
  { declared, tracked, desired, action }: TrackedStep,
  event: 'create' | 'update' | 'replace',
  applied: { id: string; record: JsonObject | null; attributes?: JsonObject | null },
  note: Note,
): TrackedRow {
  const before = tracked.physical_resource_id
  const isNew = action !== 'update'
  const moved = action === 'update' && before !== null && applied.id !== before && declared.type.registered !== null
  const replaced = action === 'replace' || moved
  const values = {
    status: isNew && !replaced ? ('created' as const) : ('updated' as const),
    physical_resource_id: applied.id,
    ...appliedState(run.services, declared.type, desired, applied.record, isNew ? NOTHING : tracked),
    ...(applied.attributes === undefined ? {} : { attributes: applied.attributes }),
    ...(replaced && before !== null
      ? { replaced: [...tracked.replaced, { physical_resource_id: before, retain: declared.retain }] }
      : {}),
  }
  note(eventOf(tracked, moved ? 'replace' : event, applied.id), { id: tracked.id, values })
  return { ...tracked, ...values }
}

const NOTHING = { applied: {}, shown: {}, hashes: {} }

/** Deletes what this operation has created, the last first. What it has changed stays changed. */
async function rollBack(run: Run, tracked: readonly TrackedRow[]): Promise<void> {
  const created = run.events.filter(({ action, status }) => action === 'create' && status === 'succeeded').reverse()
  for (const { logical_id, resource_type } of created) {
    const row = tracked.find(each => each.logical_id === logical_id && each.resource_type === resource_type)
    if (!row || run.did(row, 'rollback', 'rollback-skipped')) continue
    if (row.retain) run.later(eventOf(row, 'rollback-skipped', row.physical_resource_id))
    else await deleteTracked(run, row, 'rollback')
  }
}

/** Deletes a tracked resource, with its event. Returns the failure. */
export async function deleteTracked(
  run: Run,
  row: TrackedRow,
  action: 'rollback' | 'delete',
): Promise<RecordedFailure | null> {
  const id = row.physical_resource_id as string
  const gone = { status: 'deleted' as const, physical_resource_id: null }
  return deleteAndNote(run, row, id, (note, failure) =>
    failure
      ? note(eventOf(row, action, id, failure), { id: row.id, values: { status: 'failed' } })
      : note(eventOf(row, action, id), { id: row.id, values: gone }),
  )
}

/** Deletes a resource and has what came of it noted in the same transaction. Returns the failure. */
async function deleteAndNote(
  run: Run,
  row: TrackedRow,
  id: string,
  noted: (note: Note, failure: RecordedFailure | null) => void,
): Promise<RecordedFailure | null> {
  const handled = findType(run.services, row.resource_type)?.registered !== null
  const outside = handled ? await removeTracked(run, row, id) : null
  const failure = await run.write(async (tx, note) => {
    const failure = handled ? outside : await removeTracked(run, row, id, tx)
    noted(note, failure)
    return failure
  })
  await injectFault(run.services, 'formation_step')
  return failure
}

/** Deletes a resource that a formation tracks. Returns the failure, which has undone what the delete had written. */
export async function removeTracked(run: Run, row: TrackedRow, id: string, tx?: Tx): Promise<RecordedFailure | null> {
  try {
    const type = typeOf(run.services, row)
    const live = tx && !type.registered ? await findLive(tx, type, id, run.projectId) : null
    const about = { id, row: live?.row ?? null, applied: row.applied, tracked: row }
    await deleteResource(run, type, about, { tx, key: `${row.id}.delete.${id}` })
    return null
  } catch (error) {
    return operationFailure(run, refusal(error), row.logical_id)
  }
}

/** Removes what the template no longer declares, the last first; what cannot be deleted stays tracked. */
async function removeUndeclared(run: Run, others: readonly TrackedRow[]): Promise<void> {
  const isLeft = ({ physical_resource_id, retain }: TrackedRow) => physical_resource_id === null || retain
  const rows = [...others].reverse()
  for (const row of rows) if (!isLeft(row) && !run.did(row, 'delete')) await deleteTracked(run, row, 'delete')
  // One that is retained keeps what it needs from being deleted as long as it is tracked.
  if (run.events.some(({ action, status }) => action === 'delete' && status === 'failed')) return
  for (const row of rows) if (isLeft(row)) await run.write(async tx => forgetResource(tx, row))
}

/** A resource that the formation does not track any more, whatever becomes of it. */
export function forgetResource(tx: Tx, row: Pick<TrackedRow, 'id'>): void {
  tx.alongside(guard => changeTracked(row.id, { status: 'deleted', physical_resource_id: null }, guard))
}

type CleanupFailure = Pick<TrackedRow, 'logical_id' | 'resource_type'> & {
  physical_resource_id: string
  error: RecordedFailure
}

/** Deletes resources that were replaced. Those that cannot be deleted wait for the next operation; returns their failures. */
export async function cleanUp(run: Run): Promise<CleanupFailure[]> {
  const failures: CleanupFailure[] = []
  for (const row of await replacingResources(run.services.pool, run.formation.id)) {
    let left = row.replaced
    for (const { physical_resource_id: id, retain } of row.replaced) {
      const without = left.filter(each => each.physical_resource_id !== id)
      if (retain)
        await run.write(async (_tx, note) =>
          note(eventOf(row, 'replace-retained', id), { id: row.id, values: { replaced: without } }),
        )
      else {
        const failure = await deleteAndNote(run, row, id, (note, failed) =>
          failed
            ? note(eventOf(row, 'replace-cleanup', id, failed))
            : note(eventOf(row, 'replace-cleanup', id), { id: row.id, values: { replaced: without } }),
        )
        if (failure) {
          failures.push({
            logical_id: row.logical_id,
            resource_type: row.resource_type,
            physical_resource_id: id,
            error: failure,
          })
          continue
        }
      }
      left = without
    }
  }
  return failures
}

function cleanupFailure(failures: readonly CleanupFailure[]): RecordedFailure | null {
  if (failures.length === 0) return null
  const message = `${failures.length} resources that were replaced could not be deleted`
  return new AppError('FORMATION_REPLACE_CLEANUP_FAILED', { message, meta: { failures } }).recorded()
}

/** The values of parameters as they are shown; those that the caller left as they were keep theirs. */
function shownParameters(
  { parameters, values }: CompiledTemplate,
  before: Record<string, string> | null,
): Record<string, string> {
  return Object.fromEntries(
    [...parameters].flatMap(([name, { no_echo }]): [string, string][] => {
      const value = values.get(name) ?? before?.[name]
      return value === undefined ? [] : [[name, no_echo ? HIDDEN : value]]
    }),
  )
}
