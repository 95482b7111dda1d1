import { setTimeout as sleep } from 'node:timers/promises'
import { type Call, callAs, jsonUpload } from '#core/api/call.ts'
import { listForceDeleted } from '#core/api/dependents.ts'
import { flatten, type JsonObject, type Request } from '#core/api/flatten.ts'
import { endIdempotencyLease } from '#core/api/idempotency.ts'
import type { KindRow } from '#core/api/kind.ts'
import { type Operation, type OperationResult, operations } from '#core/api/operation.ts'
import type { CellIdentity } from '#core/base/current-cell.ts'
import { AppError, type ErrorCode, raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Caller } from '#core/iam/caller.ts'
import { invoke } from '#core/invoke/invoke.ts'
import { cellUnavailable } from '#core/services/cell.ts'
import type { Tx } from '#core/writes/writer.ts'
import { isAnyTracked, type TrackedRow } from '../records/store.ts'
import { homeOfKind, itemArguments, joinsTransaction, operationArguments, operationRequest } from '../types/built-in.ts'
import { findType } from '../types/find.ts'
import { callTypeHandler } from '../types/handler.ts'
import type { BuiltInType, TemplateType } from '../types/model.ts'
import { isSameValue, presentedProperties } from './live.ts'
import type { ResourceStep } from './step.ts'

/** Creates, updates and deletes single resources by the operations of the API or the handler of their type. */

/** Caller, project and abort signal of changes to resources. */
export type ResourceWriter = {
  services: Services
  caller: Caller
  /** The caller without the binding to the project, for operations of deployment admins. */
  unbound: Caller
  projectId: string
  signal: AbortSignal
  /** Receives values that are returned only once, by `<logical id>.<attribute>`. */
  once: Map<string, string>
}

/** Result of a create or update of a resource. */
export type AppliedChange = {
  id: string
  /** Record in the response; null if the response has none. */
  record: JsonObject | null
  attributes?: JsonObject | null
}

type CallRequest = Pick<Request, 'params'> & Partial<Request>

async function call(
  { services, caller, unbound, signal }: ResourceWriter,
  operation: Operation,
  { params, query, body }: CallRequest,
  { tx, key }: { tx?: Tx; key?: string },
): Promise<OperationResult> {
  const joins = joinsTransaction(services, operation)
  if (!joins) signal.throwIfAborted()
  const request = callAs(operation.gate === 'admin' ? unbound : caller, 'formation', {
    params,
    query,
    body: operation.receive ? undefined : (body ?? (operation.body ? {} : undefined)),
    tx: joins ? tx : undefined,
    idempotencyKey: operation.method === 'post' && !joins ? key : undefined,
  })
  const answer = await invokeOnce(
    services,
    operation,
    operation.receive ? { ...request, upload: jsonUpload(body) } : request,
    signal,
  )
  if (answer.status < 400) return answer
  // The stored refusal of an earlier attempt with the same key.
  const { code, message, meta } = (answer.body as { error: { code: ErrorCode; message: string; meta?: JsonObject } })
    .error
  throw new AppError(code, { message, meta })
}

const IN_PROGRESS_PAUSE_MS = 500
/** Copies of rows of home take milliseconds, unless replication is late. */
const COPY_WAIT_MS = 10_000
const COPY_PAUSE_MS = 50

/**
 * Invokes an operation. The formation has one attempt at a time, so a call that claims the idempotency key belongs to a
 * worker that lost its attempt: its lease is ended, and the call is made again.
 */
async function invokeOnce(
  services: Services,
  operation: Operation,
  request: Call,
  signal: AbortSignal,
): Promise<OperationResult> {
  for (;;) {
    try {
      return await invoke(services, operation, request)
    } catch (error) {
      if (!(error instanceof AppError) || error.code !== 'IDEMPOTENCY_IN_PROGRESS') throw error
      const { path, idempotencyKey: key } = request
      const caller = await request.identify()
      if (caller && key !== undefined)
        await endIdempotencyLease((homeOfKind(services, operation.kind) ?? services).pool, {
          credential_id: caller.credential.id,
          path,
          key,
        })
      await sleep(IN_PROGRESS_PAUSE_MS, undefined, { signal })
    }
  }
}

const pick = (properties: JsonObject, isIncluded: (name: string) => boolean): JsonObject =>
  Object.fromEntries(Object.entries(properties).filter(([name]) => isIncluded(name)))

const recordOf = ({ body }: OperationResult): JsonObject | null =>
  typeof body === 'object' && body !== null ? (body as JsonObject) : null

/** Whether a handler or an operation with a separate transaction applies a step. */
export function isAppliedOutside(
  services: Services,
  { declared: { type }, action }: Pick<ResourceStep, 'declared' | 'action'>,
): boolean {
  if (type.registered) return true
  const { create: creation, update: change } = type.operations
  return !joinsTransaction(services, (action === 'update' && change) || creation)
}

/** Whether a handler or an operation with a separate transaction deletes a tracked resource. */
export function isDeletedOutside(services: Services, { resource_type }: TrackedRow): boolean {
  const type = findType(services, resource_type)
  return !!type && (type.registered !== null || !joinsTransaction(services, type.operations.delete))
}

/** Creates the resource of a step. Without `tx`, a repeated call with the same `key` returns the resource of the first one. */
export async function createResource(
  attempt: ResourceWriter,
  { declared, desired }: ResourceStep,
  { tx, key }: { tx?: Tx; key: string },
): Promise<AppliedChange> {
  const { type, logical_id } = declared
  if (type.registered) {
    const { physical_resource_id, outputs = null } = await callTypeHandler(
      attempt.services,
      type.registered,
      'create',
      { logical_id, project_id: attempt.projectId, properties: desired },
      key,
    )
    return { id: physical_resource_id, record: null, attributes: outputs }
  }
  const { operations, later } = type
  const projectArgs = flatten(operations.create)?.fields.has('project_id') ? { project_id: attempt.projectId } : {}
  const direct = pick(desired, name => !later.has(name))
  const complete =
    (await type.declared.complete?.(attempt.services, tx ?? attempt.services.pool, attempt.projectId, direct)) ?? direct
  const args = { ...operationArguments(type, complete), ...projectArgs }
  const answer = await call(attempt, operations.create, operationRequest(operations.create, args), { tx, key })
  const record = createdRecord(type, answer)
  const id = record?.id
  if (typeof id !== 'string') return raise('INTERNAL_ERROR')
  for (const [attribute, from] of Object.entries(type.declared.attributes))
    if ('once' in from && typeof record?.[from.once] === 'string')
      attempt.once.set(`${logical_id}.${attribute}`, record[from.once] as string)
  await untilCopied(attempt, type, id)
  const rest = pick(desired, name => later.has(name))
  if (Object.keys(rest).length === 0) return { id, record }
  return updateProperties(attempt, type, id, rest, { ...desired, id }, record, { tx, key: `${key}.later` })
}

/**
 * Waits until the cell has the copy of a row that was created at home, because later steps may refer to it.
 * @throws CELL_UNAVAILABLE if it is late, after which the attempt is repeated
 */
async function untilCopied({ services, signal }: ResourceWriter, { kind }: BuiltInType, id: string): Promise<void> {
  if (!homeOfKind(services, kind)) return
  const end = performance.now() + COPY_WAIT_MS
  while (!(await kind.find(services.pool, id))) {
    if (performance.now() > end) throw cellUnavailable(services.cell as CellIdentity)
    await sleep(COPY_PAUSE_MS, undefined, { signal })
  }
}

const createdRecord = ({ declared }: BuiltInType, answer: OperationResult): JsonObject | null => {
  const record = recordOf(answer)
  return record && (declared.made?.(record) ?? record)
}

/** Updates properties of a resource; `all` are its properties after the update. */
async function updateProperties(
  attempt: ResourceWriter,
  type: BuiltInType,
  id: string,
  properties: JsonObject,
  all: JsonObject,
  stored: JsonObject | null,
  { tx, key }: { tx?: Tx; key: string },
): Promise<AppliedChange> {
  const { update, tags: tagging } = type.operations
  const { tags, ...others } = properties
  const direct = tagging ? others : properties
  let record = stored
  let currentId = id
  if (Object.keys(direct).length > 0 && update) {
    const args = { ...operationArguments(type, direct), ...itemArguments(type, update, id, all) }
    record = recordOf(await call(attempt, update, operationRequest(update, args), { tx, key }))
    if (typeof record?.id === 'string') currentId = record.id
  }
  if (tagging && tags !== undefined) {
    const params = itemArguments(type, tagging, currentId, all) as Record<string, string>
    await call(attempt, tagging, { params, body: tags as JsonObject }, { tx, key: `${key}.tags` })
    record = record && { ...record, tags }
  }
  return { id: currentId, record }
}

/** Updates the changed properties of the resource of a step. */
export async function updateResource(
  attempt: ResourceWriter,
  step: ResourceStep & { tracked: TrackedRow },
  { tx, key }: { tx?: Tx; key: string },
): Promise<AppliedChange> {
  const { declared, tracked, desired, changed, live } = step
  const { type, logical_id } = declared
  const id = tracked.physical_resource_id as string
  if (type.registered) {
    const { physical_resource_id, outputs = null } = await callTypeHandler(
      attempt.services,
      type.registered,
      'update',
      { logical_id, project_id: attempt.projectId, physical_resource_id: id, properties: desired },
      key,
    )
    return { id: physical_resource_id, record: null, attributes: outputs }
  }
  const { changing, moving, together } = type.declared
  const names = new Set([...changed, ...(changed.some(name => together.includes(name)) ? together : [])])
  if (changing && live?.row) {
    const { operation, args } = changing(
      live.row,
      pick(desired, name => names.has(name)),
    )
    const record = createdRecord(type, await callById(attempt, operation, args, { tx, key }))
    const isMoved = changed.some(name => moving.includes(name))
    return { id: isMoved && typeof record?.id === 'string' ? record.id : id, record }
  }
  return updateProperties(
    attempt,
    type,
    id,
    pick(desired, name => names.has(name)),
    { ...tracked.applied, ...desired },
    live?.values ?? null,
    { tx, key },
  )
}

async function callById(
  attempt: ResourceWriter,
  id: string,
  args: JsonObject,
  options: { tx?: Tx; key?: string },
): Promise<OperationResult> {
  const operation = operations.get(id)
  return call(attempt, operation, operationRequest(operation, args), options)
}

/** Deletes a resource. `row` is its current row; null if it no longer exists, which counts as deleted. */
export async function deleteResource(
  attempt: ResourceWriter,
  type: TemplateType,
  { id, row, applied, tracked }: { id: string; row: KindRow | null; applied: JsonObject; tracked: TrackedRow },
  { tx, key }: { tx?: Tx; key: string },
): Promise<void> {
  if (type.registered) {
    const about = { logical_id: tracked.logical_id, project_id: attempt.projectId, physical_resource_id: id }
    await callTypeHandler(attempt.services, type.registered, 'delete', about, key)
    return
  }
  if (!row) return
  const { deleting, deleteWith } = type.declared
  if (deleting) {
    const deletion = deleting(row)
    if (deletion) await callById(attempt, deletion.operation, deletion.args, { tx, key })
    return
  }
  const { delete: deletion } = type.operations
  // Resources of a formation are deleted only by its own template, which may retain or protect them.
  const isForced = 'force' in deleteWith && tx && !(await isAnyTracked(tx, await listForceDeleted(tx, type.kind, id)))
  const forced = isForced ? deleteWith : {}
  await call(
    attempt,
    deletion,
    operationRequest(deletion, { ...itemArguments(type, deletion, id, applied), ...forced }),
    {
      tx,
      key,
    },
  )
}

/** Returns a resource as its read operation returns it to the caller; null if the caller may not read it. */
export async function readResource(
  attempt: ResourceWriter,
  type: BuiltInType,
  id: string,
  tracked: TrackedRow,
): Promise<JsonObject | null> {
  const operation = type.operations.read
  try {
    const params = itemArguments(type, operation, id, { ...tracked.applied, project_id: attempt.projectId }) as Record<
      string,
      string
    >
    return recordOf(await call(attempt, operation, { params }, {}))
  } catch (error) {
    if (error instanceof AppError && error.status < 500) return null
    throw error
  }
}

/** Returns the state to store for applied properties, against which later changes are detected. */
export function appliedState(
  services: Services,
  type: TemplateType,
  desired: JsonObject,
  record: JsonObject | null,
  before: Pick<TrackedRow, 'applied' | 'shown' | 'hashes'>,
): Pick<TrackedRow, 'applied' | 'shown' | 'hashes'> {
  const isSecret = (name: string) => type.writeOnly.includes(name)
  const open = pick(desired, name => !isSecret(name))
  const current = record && !type.registered ? presentedProperties(type, record) : {}
  const shown = pick(current, name => name in open && !isSameValue(current[name], open[name]))
  const hashes = Object.entries(desired)
    .filter(([name]) => isSecret(name))
    .map(([name, value]) => [name, services.secrets.fingerprint(JSON.stringify(value))])
  return {
    applied: { ...before.applied, ...open },
    shown: { ...pick(before.shown, name => !(name in open)), ...shown },
    hashes: { ...before.hashes, ...Object.fromEntries(hashes) },
  }
}

/** Returns the type of a tracked resource. Raises VALIDATION_FAILED if it is no longer registered. */
export function requireType(services: Services, { resource_type, logical_id }: TrackedRow): TemplateType {
  return (
    findType(services, resource_type) ??
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: `resources.${logical_id}.type`,
      message: `${resource_type} is no longer registered`,
    })
  )
}
