import { AppError, raise } from '../api/errors.ts'
import { etagMatches, etagOf } from '../api/etag.ts'
import { keepInTransaction, type Made } from '../api/idempotency.ts'
import type { Kind, KindRow } from '../api/kind.ts'
import { type Context, isOperationResult, type OperationResult, result } from '../api/operation.ts'
import { isDatabaseError } from '../db/database-errors.ts'
import { isForeignKeyViolation, isProjectDeleted } from '../db/sql.ts'
import { withTenant } from '../db/tenant-context.ts'
import type { Tx } from '../db/writer.ts'
import { injectFault } from '../process/fault-injection.ts'
import { auditEntry, auditResult, createdId, recordChangedFields } from './audit-trail.ts'
import { endLease, REPLAYED, storeOperationResult } from './idempotent-replay.ts'
import type { Invocation } from './invocation.ts'

/** Step: the operation itself, in a transaction with its events, its messages and its audit entry. */

type AnyContext = Context<unknown, unknown, KindRow | undefined>

export async function run(inv: Invocation, context: AnyContext): Promise<OperationResult> {
  const { operation, call } = inv
  if (inv.idempotency?.made) return answerAgain(inv, context, inv.idempotency.made)
  if (operation.prepare) context.prepared = (await operation.prepare(context as never)) as never
  // A client of MCP cancels by going away; one of REST may not wait for the answer.
  if (call.surface === 'mcp' && !operation.reads && call.request.closed.aborted) throw callerGone()
  if (operation.transaction) {
    const given = await runInTransaction(inv, context)
    await injectFault(inv.services, 'request_carried_out')
    endLease(inv)
    return conditional(inv, given)
  }
  if (call.tx && !operation.reads)
    throw new Error(`operation ${operation.id} has transactions of its own and cannot be part of another`)
  const work = async () => operation.run(context as never)
  const given = asAnswer(inv, await (operation.reads && !call.tx ? whileAwaited(inv, work) : work()))
  await injectFault(inv.services, 'request_carried_out')
  await auditResult(inv, given)
  await storeOperationResult(inv, given)
  return conditional(inv, given)
}

/** What the log says of a call that nobody waits for any more. */
const callerGone = (cause?: unknown) =>
  new AppError('REQUEST_REJECTED', { status: 499, message: 'The caller has gone away', cause })

/**
 * Runs an operation that only reads: when its caller goes away, its statement is cancelled.
 * @throws REQUEST_REJECTED then, for the log
 */
async function whileAwaited<T>({ tenancy, call: { request } }: Invocation, work: () => Promise<T>): Promise<T> {
  // The signal is made when it is asked for, which is done for statements that are slow.
  const isAbandoned = () => request.closed.aborted
  try {
    return await withTenant({ ...tenancy, isAbandoned }, work)
  } catch (error) {
    if (!isDatabaseError(error) || !isAbandoned()) throw error
    throw callerGone(error)
  }
}

/** Answers in place of a first request that was lost behind its commit. */
async function answerAgain(inv: Invocation, context: AnyContext, made: Made): Promise<OperationResult> {
  const { operation, audit } = inv
  if (!operation.again) throw new Error(`operation ${operation.id} has made something that it cannot answer for`)
  audit.detail.idempotency_replayed = true
  const given = asAnswer(inv, await operation.again(context as never, made))
  const marked = { ...given, headers: { ...given.headers, ...REPLAYED } }
  await auditResult(inv, marked)
  await storeOperationResult(inv, given)
  return marked
}

function asAnswer({ operation: { answers, shape } }: Invocation, value: unknown): OperationResult {
  if (isOperationResult(value)) return value
  // Keys that are numbers come in their order, whatever the order they were written in.
  const status = shape === 'create' && answers[201] !== undefined ? 201 : Number(Object.keys(answers)[0])
  return result(status, value)
}

/** Runs the operation; once more when another call deleted what it names between its checks and its writes. */
async function runInTransaction(inv: Invocation, context: AnyContext): Promise<OperationResult> {
  try {
    return await runOnce(inv, context)
  } catch (error) {
    if (!isForeignKeyViolation(error) || isProjectDeleted(error)) throw error
    if (await isResourceDeleted(inv)) throw error
    return await runOnce(inv, context)
  }
}

export async function isResourceDeleted({ operation, resource, db }: Invocation): Promise<boolean> {
  const { kind, shape } = operation
  return shape === 'item' && !!kind && !!resource && !(await kind.find(db, resource.id))
}

async function runOnce(inv: Invocation, context: AnyContext): Promise<OperationResult> {
  const { operation, services, audit, call } = inv
  const noted = { checks: audit.additional_checks.length, detail: { ...audit.detail } }
  const work = async (tx: Tx): Promise<OperationResult> => {
    // A transaction may be run again after a serialization failure; what it noted is noted anew.
    audit.additional_checks.length = noted.checks
    audit.detail = { ...noted.detail }
    context.tx = tx
    context.db = tx
    await checkIfMatch(inv, tx)
    const given = asAnswer(inv, await operation.run(context as never))
    recordChangedFields(inv, context.body, given)
    const entry = auditEntry(inv, given.status, createdId(inv, given))
    if (entry) tx.audit(entry)
    if (inv.idempotency)
      await keepInTransaction(tx, services, inv.idempotency, given.kept ?? given, operation.secretAnswer)
    return given
  }
  const given = await (call.tx ? call.tx.nested(work) : services.write(work))
  inv.recorded = true
  return given
}

/** Takes the row's lock and compares the tag the client read with the record as it stands. */
async function checkIfMatch({ operation, call, resource }: Invocation, tx: Tx): Promise<void> {
  const { ifMatch } = call
  if (ifMatch === undefined || operation.shape !== 'item' || ['get', 'post'].includes(operation.method)) return
  const kind = operation.kind as Kind
  const row = await kind.lock(tx, (resource as KindRow).id)
  if (!etagMatches(ifMatch, etagOf(JSON.stringify(kind.present(row))))) raise('PRECONDITION_FAILED')
}

/** Adds the tag of a record that was read; 304 for a client that already has it. */
function conditional({ operation, call, resource, grant }: Invocation, given: OperationResult): OperationResult {
  const { method, shape, paged } = operation
  if (method !== 'get' || shape !== 'item' || paged || given.status !== 200 || given.stream) return given
  // The tag would tell of changes that another project is not shown.
  if (grant) return given
  const kind = operation.kind as Kind
  const row = resource as KindRow
  if ((given.body as { id?: string } | null)?.id !== row.id) return given
  const text = JSON.stringify(given.body)
  const record = JSON.stringify(kind.present(row))
  const tag = etagOf(record)
  const headers = { ...given.headers, ETag: tag }
  // An answer that adds a measured value to the record is worth sending although the record is the same.
  if (text === record && call.ifNoneMatch !== undefined && etagMatches(call.ifNoneMatch, tag))
    return result(304, undefined, headers)
  return { ...result(200, given.body, headers), text }
}
