import { auditDetail, auditText, decisionDetail } from '../api/audit.ts'
import type { Context, OperationResult } from '../api/operation.ts'
import type { AppError } from '../base/errors.ts'
import { settledWithin } from '../base/event-loop.ts'
import { processSingleton } from '../base/process-singleton.ts'
import type { Services } from '../base/services.ts'
import { batchByKey } from '../db/batcher.ts'
import { isTransient } from '../db/database-errors.ts'
import { retryWhileUnavailable } from '../db/retry.ts'
import { isProjectDeleted, sql } from '../db/sql.ts'
import { withTenant } from '../db/tenant-context.ts'
import { currentTriggerChain, withTriggerChain } from '../db/trigger-chain.ts'
import { type AuditEntry, newAuditEntry } from '../writes/audit-entry.ts'
import { readAudit } from './hooks.ts'
import { type Invocation, MAX_REQUEST_WAIT_MS } from './invocation.ts'

/** Step: the audit entry of a call, exactly one per authorization decision. */

export function createdId({ operation }: Invocation, result: OperationResult): string | null {
  const id = (result.body as { id?: unknown } | null | undefined)?.id
  return operation.shape === 'create' && typeof id === 'string' ? id : null
}

export function auditEntry(inv: Invocation, status: number, createdId: string | null): AuditEntry | null {
  const { audit, caller, decided } = inv
  const { id, ip, userAgent } = inv.call.request
  if (!decided || !caller || audit.counted) return null
  return newAuditEntry({
    project_id: audit.project_id,
    principal_type: caller.principal.type,
    principal_id: caller.principal.id,
    action: audit.action,
    resource_srn: audit.resource_srn && auditText(audit.resource_srn, 512),
    resource_public_id: audit.resource_public_id ? auditText(audit.resource_public_id) : createdId,
    status,
    request_id: id,
    ip,
    user_agent: userAgent?.slice(0, 512) ?? null,
    detail: auditDetail(audit, caller),
  })
}

/** Adds the decision of a person to the audit entry, before it is made or refused. */
export function recordDecision({ operation, audit }: Invocation, context: Context<any, any, any>): void {
  const decision = operation.decision?.(context as never)
  if (decision) Object.assign(audit.detail, decisionDetail(decision, context.caller))
}

/** Adds the names of the fields changed by an update to the audit entry, without their values. */
export function recordChangedFields(inv: Invocation, body: unknown, result: OperationResult): void {
  const { method, kind } = inv.operation
  const row = inv.resource
  if ((method !== 'patch' && method !== 'put') || !kind || !row || typeof body !== 'object' || body === null) return
  const after = result.body as Record<string, unknown> | null | undefined
  if (after?.id !== row.id) return
  const before = kind.present(row) as Record<string, unknown>
  const changes = Object.keys(body).filter(
    name => name in before && name in after && JSON.stringify(before[name]) !== JSON.stringify(after[name]),
  )
  if (changes.length > 0) inv.audit.detail.changes = changes
}

/** Maximum entries per statement. */
const MAX_BATCH = 100

const always = sql.fragment`true`

/** An entry with its trigger chain. */
type ChainedEntry = { entry: AuditEntry; chain: readonly string[] }

/** Writes entries with their events, in one statement that is its own transaction. */
const writeEntries = ({ writeOne }: Services, entries: readonly ChainedEntry[]): Promise<unknown> =>
  writeOne(outbox => {
    for (const { entry, chain } of entries) withTriggerChain(chain, () => outbox.audit(entry))
    return { ctes: [], guard: always, columns: sql.fragment`1 as written` }
  })

/**
 * Writes entries outside the transaction of their call. Entries of a project that arrive during a write are batched: one
 * statement per entry was a third of the database cost of a tool call. Projects have separate batches, so that the delete of
 * a project blocks only its own entries.
 */
function openEntryWriter(services: Services) {
  async function writeAll(entries: ChainedEntry[]): Promise<unknown[]> {
    try {
      await writeEntries(services, entries)
      return entries.map(() => null)
    } catch (error) {
      // Written individually, so that one failing entry does not affect the others.
      if (entries.length > 1 && !isTransient(error))
        return (await Promise.all(entries.map(entry => writeAll([entry])))).flat()
      // An event cannot be written for a deleted project; the entry can, as an entry of the deployment.
      if (!isProjectDeleted(error)) return entries.map(() => error)
      const [{ entry, chain }] = entries
      return writeAll([{ entry: { ...entry, project_id: null }, chain }])
    }
  }

  const write = batchByKey<string | null, ChainedEntry, unknown>(
    (tenant, entries) => withTenant({ tenant, patienceMs: MAX_REQUEST_WAIT_MS }, () => writeAll(entries)),
    { max: MAX_BATCH },
  )
  const writeOnce = async (entry: AuditEntry): Promise<void> => {
    const failure = await write(entry.project_id, { entry, chain: currentTriggerChain() })
    if (failure !== null) throw failure
  }
  const writing = new Set<Promise<void>>()

  return {
    write(entry: AuditEntry, withinMs: number): Promise<void> {
      const task = retryWhileUnavailable(() => writeOnce(entry), { withinMs }).finally(() => writing.delete(task))
      writing.add(task)
      return task
    },
    // A shutdown waits for responses, but the client of a stream may leave before its entry is written.
    close: async (): Promise<void> => void (await Promise.allSettled(writing)),
  }
}

const entryWriter = processSingleton(openEntryWriter, writer => writer.close())

/** Maximum time for which an entry is retried while the database is unavailable. */
const AUDIT_PATIENCE_MS = 5000
/** Maximum time a response waits for its entry, which is written after it otherwise. */
const AUDIT_WAIT_MS = 3000

/**
 * Writes the entry of a call that has no pipeline transaction. A failure is only logged. The response to a call that
 * `failed` because the database is unavailable does not wait.
 */
async function recordEntry(
  inv: Invocation,
  status: number,
  { createdId = null, failed }: { createdId?: string | null; failed?: unknown } = {},
): Promise<void> {
  const { services, call } = inv
  const entry = inv.recorded ? null : auditEntry(inv, status, createdId)
  inv.recorded = true
  if (!entry) return
  if (call.tx) return call.tx.audit(entry)
  const written = entryWriter(services)
    .write(entry, AUDIT_PATIENCE_MS)
    .catch(error => services.log.error({ err: error, request_id: call.request.id }, 'audit entry write failed'))
  if (!isTransient(failed)) await settledWithin(AUDIT_WAIT_MS, written)
}

async function recordRead(inv: Invocation, project: string | null, status: number): Promise<void> {
  if (!project || !inv.decided) return
  const reads = readAudit.only()?.(inv.services)
  if (!reads || !(await reads.enabledFor(project))) return
  const entry = auditEntry(inv, status, null)
  if (entry) reads.record(entry)
}

/** Records a read; in a transaction after its commit, because `enabledFor` uses another connection. */
async function recordReadAfterCommit(inv: Invocation, project: string | null, status: number): Promise<void> {
  const { call, services } = inv
  if (!call.tx) return recordRead(inv, project, status)
  call.tx.afterCommit(() => {
    recordRead(inv, project, status).catch(error => services.log.error({ err: error }, 'audit entry write failed'))
  })
}

/** Audits an executed call. */
export const auditResult = (inv: Invocation, result: OperationResult): Promise<void> =>
  inv.operation.reads
    ? recordReadAfterCommit(inv, inv.project, result.status)
    : recordEntry(inv, result.status, { createdId: createdId(inv, result) })

/** Audits a refused or failed call. */
export const auditRefusal = (inv: Invocation, error: AppError): Promise<void> =>
  inv.operation.reads
    ? recordReadAfterCommit(inv, inv.audit.project_id, error.status)
    : recordEntry(inv, error.status, { failed: error })
