import { setTimeout as sleep } from 'node:timers/promises'
import { listForceDeleted } from '../core/api/dependents.ts'
import { AppError, type ErrorCode, raise, raiseInvalid } from '../core/api/errors.ts'
import { flatten, type JsonObject, type Request } from '../core/api/flatten.ts'
import type { KindRow } from '../core/api/kind.ts'
import { type Operation, type OperationResult, operations } from '../core/api/operation.ts'
import type { Tx } from '../core/db/writer.ts'
import { type Call, callAs, jsonUpload } from '../core/invoke/call.ts'
import { invoke } from '../core/invoke/invoke.ts'
import type { Services } from '../core/process/services.ts'
import { isSameValue, shownBy } from './live.ts'
import type { Run } from './run.ts'
import type { ResourceStep } from './step.ts'
import { isAnyTracked, type TrackedRow } from './store.ts'
import { itemArguments, operationArguments, operationRequest } from './types/built-in.ts'
import { findType } from './types/find.ts'
import { callTypeHandler } from './types/handler.ts'
import type { BuiltInType, TemplateType } from './types/model.ts'

/** One resource created, changed or deleted, by the operation that a request would call. */

/** What a change leaves of a resource. */
export type AppliedChange = {
  id: string
  /** Its record as the answer showed it; null where that shows nothing. */
  record: JsonObject | null
  attributes?: JsonObject | null
}

type Asked = Pick<Request, 'params'> & Partial<Request>

/** Whether an operation can be part of a transaction; one that cannot is repeated under a key when its worker was lost. */
export const joinsTransaction = ({ transaction, reads }: Operation): boolean => transaction || reads

async function call(
  { services, caller, unbound, hold }: Run,
  operation: Operation,
  { params, query, body }: Asked,
  { tx, key }: { tx?: Tx; key?: string },
): Promise<OperationResult> {
  const made = callAs(operation.gate === 'admin' ? unbound : caller, 'formation', {
    params,
    query,
    body: operation.receive ? undefined : (body ?? (operation.body ? {} : undefined)),
    tx: tx && joinsTransaction(operation) ? tx : undefined,
    idempotencyKey: operation.method === 'post' && !joinsTransaction(operation) ? key : undefined,
  })
  const answer = await invokeOnce(
    services,
    operation,
    operation.receive ? { ...made, upload: jsonUpload(body) } : made,
    hold.signal,
  )
  if (answer.status < 400) return answer
  // A refusal that an earlier try got under the key.
  const { code, message, meta } = (answer.body as { error: { code: ErrorCode; message: string; meta?: JsonObject } })
    .error
  throw new AppError(code, { message, meta })
}

const IN_PROGRESS_PAUSE_MS = 500

/** Calls an operation, once the call of a worker that was lost no longer holds the key. */
async function invokeOnce(
  services: Services,
  operation: Operation,
  made: Call,
  signal: AbortSignal,
): Promise<OperationResult> {
  for (;;) {
    try {
      return await invoke(services, operation, made)
    } catch (error) {
      if (!(error instanceof AppError) || error.code !== 'IDEMPOTENCY_IN_PROGRESS') throw error
      await sleep(IN_PROGRESS_PAUSE_MS, undefined, { signal })
    }
  }
}

const some = (properties: JsonObject, wanted: (name: string) => boolean): JsonObject =>
  Object.fromEntries(Object.entries(properties).filter(([name]) => wanted(name)))

const recordOf = ({ body }: OperationResult): JsonObject | null =>
  typeof body === 'object' && body !== null ? (body as JsonObject) : null

/** Creates what a step declares. Without `tx` it is called under `key`, and answers what an earlier call with it has made. */
export async function createResource(
  run: Run,
  { declared, desired }: ResourceStep,
  { tx, key }: { tx?: Tx; key: string },
): Promise<AppliedChange> {
  const { type, logical_id } = declared
  if (type.registered) {
    const { physical_resource_id, outputs = null } = await callTypeHandler(
      run.services,
      type.registered,
      'create',
      { logical_id, project_id: run.projectId, properties: desired },
      key,
    )
    return { id: physical_resource_id, record: null, attributes: outputs }
  }
  const { operations, later } = type
  const fixedTo = flatten(operations.create)?.fields.has('project_id') ? { project_id: run.projectId } : {}
  const direct = some(desired, name => !later.has(name))
  const complete = (await type.declared.complete?.(run.services, tx ?? run.services.pool, direct)) ?? direct
  const args = { ...operationArguments(type, complete), ...fixedTo }
  const answer = await call(run, operations.create, operationRequest(operations.create, args), { tx, key })
  const record = madeBy(type, answer)
  const id = record?.id
  if (typeof id !== 'string') return raise('INTERNAL_ERROR')
  for (const [attribute, from] of Object.entries(type.declared.attributes))
    if ('once' in from && typeof record?.[from.once] === 'string')
      run.once.set(`${logical_id}.${attribute}`, record[from.once] as string)
  const rest = some(desired, name => later.has(name))
  if (Object.keys(rest).length === 0) return { id, record }
  return change(run, type, id, rest, { ...desired, id }, record, { tx, key: `${key}.later` })
}

const madeBy = ({ declared }: BuiltInType, answer: OperationResult): JsonObject | null => {
  const given = recordOf(answer)
  return given && (declared.made?.(given) ?? given)
}

/** Changes properties of a resource; `all` are those that it has then. */
async function change(
  run: Run,
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
  let moved = id
  if (Object.keys(direct).length > 0 && update) {
    const args = { ...operationArguments(type, direct), ...itemArguments(type, update, id, all) }
    record = recordOf(await call(run, update, operationRequest(update, args), { tx, key }))
    if (typeof record?.id === 'string') moved = record.id
  }
  if (tagging && tags !== undefined) {
    const params = itemArguments(type, tagging, moved, all) as Record<string, string>
    await call(run, tagging, { params, body: tags as JsonObject }, { tx, key: `${key}.tags` })
    record = record && { ...record, tags }
  }
  return { id: moved, record }
}

/** Changes what differs of the resource of a step. */
export async function updateResource(
  run: Run,
  step: ResourceStep & { tracked: TrackedRow },
  { tx, key }: { tx?: Tx; key: string },
): Promise<AppliedChange> {
  const { declared, tracked, desired, changed, live } = step
  const { type, logical_id } = declared
  const id = tracked.physical_resource_id as string
  if (type.registered) {
    const { physical_resource_id, outputs = null } = await callTypeHandler(
      run.services,
      type.registered,
      'update',
      { logical_id, project_id: run.projectId, physical_resource_id: id, properties: desired },
      key,
    )
    return { id: physical_resource_id, record: null, attributes: outputs }
  }
  const { changing, moving, together } = type.declared
  const wanted = new Set([...changed, ...(changed.some(name => together.includes(name)) ? together : [])])
  if (changing && live?.row) {
    const { operation, args } = changing(
      live.row,
      some(desired, name => wanted.has(name)),
    )
    const record = madeBy(type, await callNamed(run, operation, args, { tx, key }))
    const isMoved = changed.some(name => moving.includes(name))
    return { id: isMoved && typeof record?.id === 'string' ? record.id : id, record }
  }
  return change(
    run,
    type,
    id,
    some(desired, name => wanted.has(name)),
    { ...tracked.applied, ...desired },
    live?.values ?? null,
    { tx, key },
  )
}

async function callNamed(
  run: Run,
  id: string,
  args: JsonObject,
  options: { tx?: Tx; key?: string },
): Promise<OperationResult> {
  const operation = operations.get(id)
  return call(run, operation, operationRequest(operation, args), options)
}

/** Deletes a resource. One that is gone counts as deleted; `row` is it as it is. */
export async function deleteResource(
  run: Run,
  type: TemplateType,
  { id, row, applied, tracked }: { id: string; row: KindRow | null; applied: JsonObject; tracked: TrackedRow },
  { tx, key }: { tx?: Tx; key: string },
): Promise<void> {
  if (type.registered) {
    const about = { logical_id: tracked.logical_id, project_id: run.projectId, physical_resource_id: id }
    await callTypeHandler(run.services, type.registered, 'delete', about, key)
    return
  }
  if (!row) return
  const { deleting, deleteWith } = type.declared
  if (deleting) {
    const deletion = deleting(row)
    if (deletion) await callNamed(run, deletion.operation, deletion.args, { tx, key })
    return
  }
  const { delete: deletion } = type.operations
  // What a formation has goes by its own template alone: there it may be retained, or protected.
  const isForced = 'force' in deleteWith && tx && !(await isAnyTracked(tx, await listForceDeleted(tx, type.kind, id)))
  const forced = isForced ? deleteWith : {}
  await call(run, deletion, operationRequest(deletion, { ...itemArguments(type, deletion, id, applied), ...forced }), {
    tx,
    key,
  })
}

/** Reads a resource as its own read shows it to the caller; null where it is not shown. */
export async function readResource(
  run: Run,
  type: BuiltInType,
  id: string,
  tracked: TrackedRow,
  operation = type.operations.read,
): Promise<JsonObject | null> {
  try {
    const params = itemArguments(type, operation, id, { ...tracked.applied, project_id: run.projectId }) as Record<
      string,
      string
    >
    return recordOf(await call(run, operation, { params }, {}))
  } catch (error) {
    if (error instanceof AppError && error.status < 500) return null
    throw error
  }
}

/** What is kept of properties that were applied, to tell later what has changed. */
export function appliedState(
  services: Services,
  type: TemplateType,
  desired: JsonObject,
  record: JsonObject | null,
  before: Pick<TrackedRow, 'applied' | 'shown' | 'hashes'>,
): Pick<TrackedRow, 'applied' | 'shown' | 'hashes'> {
  const isSecret = (name: string) => type.writeOnly.includes(name)
  const open = some(desired, name => !isSecret(name))
  const shows = record && !type.registered ? shownBy(type, record) : {}
  const shown = some(shows, name => name in open && !isSameValue(shows[name], open[name]))
  const hashes = Object.entries(desired)
    .filter(([name]) => isSecret(name))
    .map(([name, value]) => [name, services.secrets.fingerprint(JSON.stringify(value))])
  return {
    applied: { ...before.applied, ...open },
    shown: { ...some(before.shown, name => !(name in open)), ...shown },
    hashes: { ...before.hashes, ...Object.fromEntries(hashes) },
  }
}

/** The type of a tracked resource. Raises VALIDATION_FAILED for one that is no longer registered. */
export function typeOf(services: Services, { resource_type, logical_id }: TrackedRow): TemplateType {
  return (
    findType(services, resource_type) ??
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: `resources.${logical_id}.type`,
      message: `${resource_type} is not registered any more`,
    })
  )
}
