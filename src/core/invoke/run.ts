import { etagMatches, etagOf } from '../api/etag.ts'
import { type Made, storeInTransaction } from '../api/idempotency.ts'
import type { Kind, KindRow } from '../api/kind.ts'
import { type Context, isOperationResult, type Operation, type OperationResult, result } from '../api/operation.ts'
import { AppError, raise } from '../base/errors.ts'
import { injectFault } from '../base/fault-injection.ts'
import { isDatabaseError } from '../db/database-errors.ts'
import { isForeignKeyViolation, isProjectDeleted } from '../db/sql.ts'
import { withTenant } from '../db/tenant-context.ts'
import type { Tx } from '../writes/writer.ts'
import { auditEntry, auditResult, createdId, recordChangedFields } from './audit-trail.ts'
import { endLease, REPLAYED, storeOperationResult } from './idempotent-replay.ts'
import type { Invocation } from './invocation.ts'

/** Step: runs the operation, in a transaction with its events, messages and audit entry. */

type AnyContext = Context<unknown, unknown, KindRow | undefined>

export async function run(inv: Invocation, context: AnyContext): Promise<OperationResult> {
  const { operation, call } = inv
  if (inv.idempotency?.made) return resumeOperation(inv, context, inv.idempotency.made)
  await prepare(operation, context)
  // An MCP client cancels by disconnecting; a REST client may disconnect without waiting for the response.
  if (call.surface === 'mcp' && !operation.reads && call.request.closed.aborted) throw clientDisconnected()
  if (operation.transaction) {
    const response = await runInTransaction(inv, context)
    await injectFault(inv.services, 'request_carried_out')
    endLease(inv)
    return withEtag(inv, response)
  }
  if (call.tx && !operation.reads)
    throw new Error(`operation ${operation.id} opens its own transactions and cannot join the caller's`)
  if (mayReadReplica(inv, context)) context.db = inv.services.replica?.reads() ?? context.db
  const work = async () => operation.run(context as never)
  const response = toResult(inv, await (operation.reads && !call.tx ? runCancellable(inv, work) : work()))
  await injectFault(inv.services, 'request_carried_out')
  const audited = auditResult(inv, response)
  // The first bytes of a stream do not wait for its audit entry, its end does.
  if (response.stream && !operation.reads) call.request.audited = audited
  else await audited
  await storeOperationResult(inv, response)
  return withEtag(inv, response)
}

/** Offset above which a list may be read from the replica. */
const DEEP_OFFSET = 1000

const mayReadReplica = ({ operation: { reads, replica, paged }, call }: Invocation, { page }: AnyContext): boolean =>
  reads && !call.tx && (replica || (paged && page.offset > DEEP_OFFSET))

const prepare = async ({ prepare }: Operation, context: AnyContext): Promise<void> => {
  if (prepare) context.prepared = (await prepare(context as never)) as never
}

/** Returns the error, for the log, of a call whose client disconnected. */
const clientDisconnected = (cause?: unknown) =>
  new AppError('REQUEST_REJECTED', { status: 499, message: 'The client disconnected', cause })

/**
 * Runs a read; if its client disconnects, its statement is cancelled.
 * @throws REQUEST_REJECTED in that case, for the log
 */
async function runCancellable<T>({ tenancy, call: { request } }: Invocation, work: () => Promise<T>): Promise<T> {
  // Called only for slow statements, because it creates the signal.
  const isAbandoned = () => request.closed.aborted
  try {
    return await withTenant({ ...tenancy, isAbandoned }, work)
  } catch (error) {
    if (!isDatabaseError(error) || !isAbandoned()) throw error
    throw clientDisconnected(error)
  }
}

/** Responds in place of a first request that was lost after its commit. */
async function resumeOperation(inv: Invocation, context: AnyContext, made: Made): Promise<OperationResult> {
  const { operation, audit } = inv
  if (!operation.again) throw new Error(`operation ${operation.id} recorded effects but has no 'again'`)
  audit.detail.idempotency_replayed = true
  const response = toResult(inv, await operation.again(context as never, made))
  const replayed = { ...response, headers: { ...response.headers, ...REPLAYED } }
  await auditResult(inv, replayed)
  await storeOperationResult(inv, response)
  return replayed
}

function toResult({ operation: { answers, shape } }: Invocation, value: unknown): OperationResult {
  if (isOperationResult(value)) return value
  // Numeric keys are enumerated in ascending order.
  const status = shape === 'create' && answers[201] !== undefined ? 201 : Number(Object.keys(answers)[0])
  return result(status, value)
}

/**
 * Runs the operation; prepares and runs it once more if another call deleted a referenced row between its checks and
 * its writes.
 */
async function runInTransaction(inv: Invocation, context: AnyContext): Promise<OperationResult> {
  try {
    return await runOnce(inv, context)
  } catch (error) {
    if (!isForeignKeyViolation(error) || isProjectDeleted(error)) throw error
    if (await isResourceDeleted(inv)) throw error
    context.db = inv.db
    await prepare(inv.operation, context)
    return await runOnce(inv, context)
  }
}

export async function isResourceDeleted({ operation, resource, db }: Invocation): Promise<boolean> {
  const { kind, shape } = operation
  return shape === 'item' && !!kind && !!resource && !(await kind.find(db, resource.id))
}

async function runOnce(inv: Invocation, context: AnyContext): Promise<OperationResult> {
  const { operation, services, audit, call } = inv
  const initial = { checks: audit.additional_checks.length, detail: { ...audit.detail } }
  const work = async (tx: Tx): Promise<OperationResult> => {
    // The transaction may be rerun after a serialization failure: the audit entry is reset.
    audit.additional_checks.length = initial.checks
    audit.detail = { ...initial.detail }
    context.tx = tx
    context.db = tx
    await checkIfMatch(inv, tx)
    const response = toResult(inv, await operation.run(context as never))
    recordChangedFields(inv, context.body, response)
    const entry = auditEntry(inv, response.status, createdId(inv, response))
    if (entry) tx.audit(entry)
    if (inv.idempotency)
      await storeInTransaction(tx, services, inv.idempotency, response.kept ?? response, operation.secretAnswer)
    return response
  }
  const response = await (call.tx ? call.tx.nested(work) : services.write(work))
  inv.recorded = true
  return response
}

/** Locks the row and compares its current entity tag with If-Match. Raises PRECONDITION_FAILED. */
async function checkIfMatch({ operation, call, resource }: Invocation, tx: Tx): Promise<void> {
  const { ifMatch } = call
  if (ifMatch === undefined || operation.shape !== 'item' || ['get', 'post'].includes(operation.method)) return
  const kind = operation.kind as Kind
  const row = await kind.lock(tx, (resource as KindRow).id)
  if (!etagMatches(ifMatch, etagOf(JSON.stringify(kind.present(row))))) raise('PRECONDITION_FAILED')
}

/** Adds the ETag to the response of a get; returns 304 if the client has the current record. */
function withEtag({ operation, call, resource, grant }: Invocation, response: OperationResult): OperationResult {
  const { method, shape, paged } = operation
  if (method !== 'get' || shape !== 'item' || paged || response.status !== 200 || response.stream) return response
  // The tag would reveal changes of fields that are hidden from another project.
  if (grant) return response
  const kind = operation.kind as Kind
  const row = resource as KindRow
  if ((response.body as { id?: string } | null)?.id !== row.id) return response
  const text = JSON.stringify(response.body)
  const record = JSON.stringify(kind.present(row))
  const tag = etagOf(record)
  const headers = { ...response.headers, ETag: tag }
  // A response with additional measured values is sent even if the record is unchanged.
  if (text === record && call.ifNoneMatch !== undefined && etagMatches(call.ifNoneMatch, tag))
    return result(304, undefined, headers)
  return { ...result(200, response.body, headers), text }
}
