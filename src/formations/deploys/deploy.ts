import type { JsonObject } from '#core/api/flatten.ts'
import { AppError, type RecordedFailure, raise, raiseInvalid } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import { isTransient } from '#core/db/database-errors.ts'
import { unavailableCellName } from '#core/services/cell.ts'
import type { AttemptFields } from '#core/work/attempt.ts'
import type { Tx } from '#core/writes/writer.ts'
import {
  appliedState,
  createResource,
  deleteResource,
  isAppliedOutside,
  isDeletedOutside,
  requireType,
  updateResource,
} from '../plans/apply.ts'
import { type CompiledTemplate, type DeclaredResource, withoutDeferred } from '../plans/compile.ts'
import { readImportedValues } from '../plans/imports.ts'
import { findLive, listLiveResources } from '../plans/live.ts'
import { matchResources, templateScope } from '../plans/plan.ts'
import { sealAnswer } from '../plans/sealed.ts'
import { type ResourceStep, stepFor } from '../plans/step.ts'
import { formationKind } from '../records/model.ts'
import {
  arrangeResources,
  insertPending,
  listReplacedResources,
  listTrackedResources,
  type TrackedRow,
  updateOperation,
  updateTracked,
} from '../records/store.ts'
import type { TemplateScope } from '../template/expressions.ts'
import type { Live } from '../types/model.ts'
import { type AddEvent, eventOf, type OperationAttempt, operationFailure } from './operation-attempt.ts'
import { HIDDEN, resolveMetadata, resolveOutputs } from './outputs.ts'

/**
 * Deploys a template: creates, updates, replaces and deletes resources of a formation. Each change is committed with its
 * tracked state and its event, so that another worker can resume after a crash.
 */
export async function runDeploy(attempt: OperationAttempt, compiled: CompiledTemplate): Promise<AttemptFields> {
  const { services } = attempt
  const state = await trackDeclared(attempt, compiled)
  const failed = attempt.events.find(({ status, action }) => status === 'failed' && FORWARD.includes(action as never))
  const failure = failed
    ? {
        ...(failed.error as RecordedFailure),
        meta: { logical_id: failed.logical_id, resource_type: failed.resource_type, ...failed.error?.meta },
      }
    : await applyAll(attempt, compiled, state)
  if (failure) {
    await rollBack(attempt, [...state.of.values()])
    await attempt.settle(async tx => {
      await updateOperation(tx, attempt.operation.id, { status: 'failed', error: failure })
      const row = await formationKind.update(tx, attempt.formation.id, { status: 'failed', error: failure })
      tx.emit(formationKind, 'failed', row)
    })
    return { outcome: 'failed', code: failure.code }
  }
  await injectFault(services, 'formation_applied')
  await removeUndeclared(attempt, state.others)
  const cleanupError = cleanupFailure(await cleanUp(attempt))
  const resolved = await resolveOutputs(attempt, compiled, state.of, state.scope)
  const resolved_metadata = resolveMetadata(compiled, state.scope)
  await attempt.settle(async tx => {
    await updateOperation(tx, attempt.operation.id, {
      status: 'succeeded',
      error: cleanupError,
      sealed_answer: sealAnswer(attempt, resolved.once),
    })
    const row = await formationKind.update(tx, attempt.formation.id, {
      status: 'active',
      error: cleanupError,
      outputs: resolved.outputs,
      read_outputs: resolved.read,
      resolved_metadata,
      resolved_parameters: presentParameters(compiled, attempt.formation.resolved_parameters),
    })
    tx.emit(formationKind, 'deployed', row)
  })
  return { outcome: 'succeeded', events: attempt.events.length }
}

/** Actions whose failure ends the deploy and starts the rollback. */
const FORWARD = ['create', 'update', 'replace'] as const

type DeployState = {
  /** Tracked resources by logical ID. */
  of: Map<string, TrackedRow>
  others: TrackedRow[]
  live: ReadonlyMap<string, Live>
  scope: TemplateScope
}

/** Tracks every declared resource before the first one is applied. */
async function trackDeclared(attempt: OperationAttempt, compiled: CompiledTemplate): Promise<DeployState> {
  const { services, formation, projectId } = attempt
  const { pool } = services
  const tracked = await listTrackedResources(pool, formation.id)
  const { of, others, problems } = matchResources(compiled, tracked)
  if (problems.length > 0) raiseInvalid(problems)
  const arranged = compiled.declared.map((declared, position) => ({
    declared,
    arrangement: arrangementOf(declared, position),
    row: of.get(declared.logical_id),
  }))
  const changed = arranged.flatMap(({ row, arrangement }) =>
    row && differsFrom(row, arrangement) ? [{ ...arrangement, id: row.id }] : [],
  )
  const untracked = arranged.filter(({ row }) => !row)
  if (changed.length + untracked.length > 0) {
    const added = await attempt.write(async tx => {
      await arrangeResources(tx, changed)
      return insertPending(
        tx,
        formation.id,
        untracked.map(({ arrangement, declared }) => ({ ...arrangement, resource_type: declared.type.name })),
      )
    })
    for (const row of added) of.set(row.logical_id, row)
    for (const { row, arrangement } of arranged) if (row) of.set(arrangement.logical_id, { ...row, ...arrangement })
  }
  const imports = await readImportedValues(pool, projectId, compiled)
  const scope = templateScope(compiled, imports, name => {
    const id = of.get(name)?.physical_resource_id
    return id ? { text: id } : 'unknown'
  })
  return { of, others, live: await listLiveResources(services, pool, tracked, projectId), scope }
}

const arrangementOf = ({ logical_id, retain, prevent_destroy }: DeclaredResource, position: number) => ({
  logical_id,
  position,
  retain,
  prevent_destroy,
})

const differsFrom = (row: TrackedRow, arrangement: ReturnType<typeof arrangementOf>): boolean =>
  (Object.keys(arrangement) as (keyof typeof arrangement)[]).some(name => row[name] !== arrangement[name])

/** Applies the declared resources in order, then their deferred properties, up to the first failure, which it returns. */
async function applyAll(
  attempt: OperationAttempt,
  { declared }: CompiledTemplate,
  state: DeployState,
): Promise<RecordedFailure | null> {
  for (const each of declared) {
    const failure = await applyResource(attempt, each, state)
    if (failure) return failure
  }
  for (const each of declared) {
    if (each.deferred.size === 0) continue
    const failure = await applyDeferred(attempt, each, state)
    if (failure) return failure
  }
  return null
}

/** Applies a resource without its deferred properties. Returns the failure. */
async function applyResource(
  attempt: OperationAttempt,
  declared: DeclaredResource,
  state: DeployState,
): Promise<RecordedFailure | null> {
  const tracked = state.of.get(declared.logical_id) as TrackedRow
  if (attempt.hasEvent(tracked, ...DONE)) return null
  const id = tracked.physical_resource_id
  const live = (id && state.live.get(id)) || null
  const first = await stepFor(attempt.services, withoutDeferred(declared), tracked, live, state.scope)
  const step = repeatIfUnrecorded(attempt, first)
  if (step.action !== 'no-op') return applyTracked(attempt, { ...step, tracked }, state)
  if (declared.deferred.size === 0) attempt.addPending(eventOf(tracked, 'no-op', id))
  return null
}

/**
 * Sets the deferred properties of a resource that exists. Its update joins the transaction of its event, so that another worker finds
 * nothing to do after the commit.
 */
async function applyDeferred(
  attempt: OperationAttempt,
  declared: DeclaredResource,
  state: DeployState,
): Promise<RecordedFailure | null> {
  const { services, projectId } = attempt
  const tracked = state.of.get(declared.logical_id) as TrackedRow
  const { type } = declared
  const id = tracked.physical_resource_id
  const live = id && !type.registered ? await findLive(services, services.pool, type, { id, projectId }) : null
  const step = await stepFor(services, declared, tracked, live, state.scope)
  if (step.action === 'update') return applyTracked(attempt, { ...step, tracked }, state)
  if (step.action === 'no-op' && !attempt.hasEvent(tracked, ...DONE)) attempt.addPending(eventOf(tracked, 'no-op', id))
  return null
}

/** Applies a step. Returns the failure with the resource that it concerns. */
async function applyTracked(
  attempt: OperationAttempt,
  step: TrackedStep,
  state: DeployState,
): Promise<RecordedFailure | null> {
  const { logical_id, type } = step.declared
  const failure = await applyStep(attempt, step, after => state.of.set(logical_id, after))
  return failure && { ...failure, meta: { logical_id, resource_type: type.name, ...failure.meta } }
}

/** Actions whose event ends the step of a resource. */
const DONE = [...FORWARD, 'no-op'] as const

type TrackedStep = ResourceStep & { tracked: TrackedRow }

/**
 * Returns a no-op step as an update if the plan had an update and an earlier attempt may have applied it without recording
 * it: its worker may have been lost between the call and the commit.
 */
function repeatIfUnrecorded(
  { services, operation: { plan }, workAttempt }: OperationAttempt,
  step: ResourceStep,
): ResourceStep {
  const planned = plan?.find(({ logical_id }) => logical_id === step.declared.logical_id)
  if (step.action !== 'no-op' || workAttempt.claim.claims === 1 || planned?.action !== 'update') return step
  const changed = Object.keys(planned.diff?.desired ?? {}).filter(name => name in step.desired)
  const repeated: ResourceStep = { ...step, action: 'update', changed }
  return isAppliedOutside(services, repeated) ? repeated : step
}

/** Applies one step and passes the tracked row after it to `onApplied`. Returns the failure. */
async function applyStep(
  attempt: OperationAttempt,
  step: TrackedStep,
  onApplied: (after: TrackedRow) => void,
): Promise<RecordedFailure | null> {
  const { tracked, declared } = step
  const action = step.action === 'recreate' ? 'create' : (step.action as 'create' | 'update' | 'replace')
  const key = keyOf(attempt, step)
  const work = async (tx?: Tx) => {
    refuseProblems(step)
    if (!attempt.operation.force_conflicts) refuseOverwrites(step)
    return step.action === 'update'
      ? updateResource(attempt, step, { tx, key })
      : createResource(attempt, step, { tx, key })
  }
  const failed = (error: unknown): RecordedFailure => operationFailure(attempt, refusal(error), declared.logical_id)
  // A call outside the transaction runs before its event is written; a repeat finds its result by the key.
  const outside = isAppliedOutside(attempt.services, step) ? await work().catch(failed) : null
  await injectFault(attempt.services, 'formation_called')
  const failure = await attempt.write(async (tx, addEvent) => {
    const applied = outside ?? (await (isOneCall(step) ? work(tx) : tx.nested(work)).catch(failed))
    if ('id' in applied) {
      onApplied(recordApplied(attempt, step, action, applied, addEvent))
      return null
    }
    const values = { status: 'failed' as const, refusals: tracked.refusals + 1 }
    addEvent(eventOf(tracked, action, tracked.physical_resource_id, applied), { id: tracked.id, values })
    return applied
  })
  await injectFault(attempt.services, 'formation_step')
  return failure
}

/** Returns the error of a refused call, whose writes are rolled back. Rethrows transient and unexpected errors. */
function refusal(error: unknown): AppError {
  if (!(error instanceof AppError) || isTransient(error) || unavailableCellName(error) !== null) throw error
  return error
}

/** Whether a step is a single call, which rolls back its own writes when it is refused. */
const isOneCall = ({ declared: { type }, desired }: ResourceStep): boolean =>
  type.registered !== null ||
  Object.keys(desired).every(name => !type.later.has(name) && !(type.operations.tags && name === 'tags'))

/**
 * Returns the idempotency key of a call outside the transaction. The key of a create is the same in later operations: an
 * operation that lost its workers may have created the resource.
 */
function keyOf({ operation }: OperationAttempt, { action, tracked, declared }: TrackedStep): string {
  const { id, refusals } = tracked
  if (action === 'create') return declared.type.registered ? `${id}.create` : `${id}.create.${refusals}`
  return action === 'update' ? `${id}.${operation.id}` : `${id}.${operation.id}.create`
}

/** Raises VALIDATION_FAILED for a step with problems. */
function refuseProblems({ problems }: ResourceStep): void {
  if (problems.length > 0) raiseInvalid([...problems])
}

/** Raises FORMATION_CONFLICT for fields that were changed since the operation was accepted. */
function refuseOverwrites({ declared: { logical_id }, overwritten }: ResourceStep): void {
  if (overwritten.length === 0) return
  const conflicts = overwritten.map(field => ({ logical_id, field, changed_by: null, changed_at: null }))
  raise('FORMATION_CONFLICT', {
    message: `${overwritten[0]} of ${logical_id} was changed outside the formation since the last deploy`,
    meta: { conflicts },
  })
}

function recordApplied(
  attempt: OperationAttempt,
  { declared, tracked, desired, action }: TrackedStep,
  event: 'create' | 'update' | 'replace',
  applied: { id: string; record: JsonObject | null; attributes?: JsonObject | null },
  addEvent: AddEvent,
): TrackedRow {
  const before = tracked.physical_resource_id
  const isNew = action !== 'update'
  const moved = action === 'update' && before !== null && applied.id !== before && declared.type.registered !== null
  const replaced = action === 'replace' || moved
  const values = {
    status: (isNew && !replaced) || isCompleted(attempt, tracked) ? ('created' as const) : ('updated' as const),
    physical_resource_id: applied.id,
    ...appliedState(attempt.services, declared.type, desired, applied.record, isNew ? EMPTY_STATE : tracked),
    ...(applied.attributes === undefined ? {} : { attributes: applied.attributes }),
    ...(replaced && before !== null
      ? { replaced: [...tracked.replaced, { physical_resource_id: before, retain: declared.retain }] }
      : {}),
  }
  addEvent(eventOf(tracked, moved ? 'replace' : event, applied.id), { id: tracked.id, values })
  return { ...tracked, ...values }
}

/** Whether an update completes what this operation has created. */
const isCompleted = (attempt: OperationAttempt, tracked: TrackedRow): boolean =>
  tracked.status === 'created' && attempt.hasEvent(tracked, 'create')

const EMPTY_STATE = { applied: {}, shown: {}, hashes: {} }

/** Deletes the resources that this operation created, in reverse order. Updates are not rolled back. */
async function rollBack(attempt: OperationAttempt, tracked: readonly TrackedRow[]): Promise<void> {
  const created = attempt.events.filter(({ action, status }) => action === 'create' && status === 'succeeded').reverse()
  for (const { logical_id, resource_type } of created) {
    const row = tracked.find(each => each.logical_id === logical_id && each.resource_type === resource_type)
    if (!row || attempt.hasEvent(row, 'rollback', 'rollback-skipped')) continue
    if (row.retain) attempt.addPending(eventOf(row, 'rollback-skipped', row.physical_resource_id))
    else await deleteTracked(attempt, row, 'rollback')
  }
}

/** Deletes a tracked resource and writes the event. Returns the failure. */
export async function deleteTracked(
  attempt: OperationAttempt,
  row: TrackedRow,
  action: 'rollback' | 'delete',
): Promise<RecordedFailure | null> {
  const id = row.physical_resource_id as string
  const deleted = { status: 'deleted' as const }
  return deleteWithEvent(attempt, row, id, (addEvent, failure) =>
    failure
      ? addEvent(eventOf(row, action, id, failure), { id: row.id, values: { status: 'failed' } })
      : addEvent(eventOf(row, action, id), { id: row.id, values: deleted }),
  )
}

/** Deletes a resource and writes its event in the same transaction. Returns the failure. */
async function deleteWithEvent(
  attempt: OperationAttempt,
  row: TrackedRow,
  id: string,
  writeEvent: (addEvent: AddEvent, failure: RecordedFailure | null) => void,
): Promise<RecordedFailure | null> {
  const isSeparate = isDeletedOutside(attempt.services, row)
  const outside = isSeparate ? await removeTracked(attempt, row, id) : null
  const failure = await attempt.write(async (tx, addEvent) => {
    const failure = isSeparate ? outside : await removeTracked(attempt, row, id, tx)
    writeEvent(addEvent, failure)
    return failure
  })
  await injectFault(attempt.services, 'formation_step')
  return failure
}

/** Deletes a tracked resource. Returns the failure; the writes of a failed delete are rolled back. */
export async function removeTracked(
  attempt: OperationAttempt,
  row: TrackedRow,
  id: string,
  tx?: Tx,
): Promise<RecordedFailure | null> {
  try {
    const type = requireType(attempt.services, row)
    const live = type.registered
      ? null
      : await findLive(attempt.services, tx ?? attempt.services.pool, type, { id, projectId: attempt.projectId })
    const about = { id, row: live?.row ?? null, applied: row.applied, tracked: row }
    await deleteResource(attempt, type, about, { tx, key: `${row.id}.delete.${id}` })
    return null
  } catch (error) {
    return operationFailure(attempt, refusal(error), row.logical_id)
  }
}

/** Deletes undeclared resources in reverse order. A resource that cannot be deleted stays tracked. */
async function removeUndeclared(attempt: OperationAttempt, others: readonly TrackedRow[]): Promise<void> {
  const isOnlyForgotten = ({ physical_resource_id, retain }: TrackedRow) => physical_resource_id === null || retain
  const rows = [...others].reverse()
  for (const row of rows)
    if (!isOnlyForgotten(row) && !attempt.hasEvent(row, 'delete')) await deleteTracked(attempt, row, 'delete')
  // After a failed delete, retained resources stay tracked: the dependencies that could not be deleted are still tracked too.
  if (attempt.events.some(({ action, status }) => action === 'delete' && status === 'failed')) return
  for (const row of rows) if (isOnlyForgotten(row)) await attempt.write(async tx => forgetResource(tx, row))
}

/** Stops tracking a resource without deleting it. */
export function forgetResource(tx: Tx, row: Pick<TrackedRow, 'id'>): void {
  tx.alongside(guard => updateTracked(row.id, { status: 'deleted' }, guard))
}

type CleanupFailure = Pick<TrackedRow, 'logical_id' | 'resource_type'> & {
  physical_resource_id: string
  error: RecordedFailure
}

/** Deletes replaced resources. Resources that cannot be deleted are tried again by the next operation; returns the failures. */
export async function cleanUp(attempt: OperationAttempt): Promise<CleanupFailure[]> {
  const failures: CleanupFailure[] = []
  for (const row of await listReplacedResources(attempt.services.pool, attempt.formation.id)) {
    let remaining = row.replaced
    for (const { physical_resource_id: id, retain } of row.replaced) {
      const without = remaining.filter(each => each.physical_resource_id !== id)
      if (retain)
        await attempt.write(async (_tx, addEvent) =>
          addEvent(eventOf(row, 'replace-retained', id), { id: row.id, values: { replaced: without } }),
        )
      else {
        const failure = await deleteWithEvent(attempt, row, id, (addEvent, error) =>
          error
            ? addEvent(eventOf(row, 'replace-cleanup', id, error))
            : addEvent(eventOf(row, 'replace-cleanup', id), { id: row.id, values: { replaced: without } }),
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
      remaining = without
    }
  }
  return failures
}

function cleanupFailure(failures: readonly CleanupFailure[]): RecordedFailure | null {
  if (failures.length === 0) return null
  const message = `${failures.length} replaced resources could not be deleted`
  return new AppError('FORMATION_REPLACE_CLEANUP_FAILED', { message, meta: { failures } }).recorded()
}

/** Returns the parameter values to store, with hidden ones masked. A parameter without a new value keeps its previous value. */
function presentParameters(
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
