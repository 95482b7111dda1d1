import { type AuditEntry, auditDetail, auditText } from '../api/audit.ts'
import type { AppError } from '../api/errors.ts'
import { newId } from '../api/ids.ts'
import type { OperationResult } from '../api/operation.ts'
import { Batcher } from '../db/batcher.ts'
import { isTransient } from '../db/database-errors.ts'
import { retryWhileUnavailable } from '../db/retry.ts'
import { isProjectDeleted, sql } from '../db/sql.ts'
import { withTenant } from '../db/tenant-context.ts'
import { currentTriggerChain, withTriggerChain } from '../db/trigger-chain.ts'
import { processSingleton } from '../process/process-singleton.ts'
import type { Services } from '../process/services.ts'
import { readAudit } from './hooks.ts'
import { type Invocation, MAX_REQUEST_WAIT_MS } from './invocation.ts'

/** Step: the audit entry of a call. Exactly one, once a decision was taken. */

export function createdId({ operation }: Invocation, given: OperationResult): string | null {
  const id = (given.body as { id?: unknown } | null | undefined)?.id
  return operation.shape === 'create' && typeof id === 'string' ? id : null
}

export function auditEntry(inv: Invocation, status: number, createdId: string | null): AuditEntry | null {
  const { audit, caller, decided } = inv
  const { id, ip, userAgent } = inv.call.request
  if (!decided || !caller || audit.counted) return null
  return {
    id: newId('audit'),
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
    created_at: new Date().toISOString(),
  }
}

/** Names, without their values, the fields an update set that the record shows otherwise now. */
export function recordChangedFields(inv: Invocation, body: unknown, given: OperationResult): void {
  const { method, kind } = inv.operation
  const row = inv.resource
  if ((method !== 'patch' && method !== 'put') || !kind || !row || typeof body !== 'object' || body === null) return
  const after = given.body as Record<string, unknown> | null | undefined
  if (after?.id !== row.id) return
  const before = kind.present(row) as Record<string, unknown>
  const changes = Object.keys(body).filter(
    name => name in before && name in after && JSON.stringify(before[name]) !== JSON.stringify(after[name]),
  )
  if (changes.length > 0) inv.audit.detail.changes = changes
}

/** Most entries of one statement. */
const TOGETHER = 100

const always = sql.fragment`true`

/** An entry with the triggers that led to it. */
type Caused = { entry: AuditEntry; chain: readonly string[] }

/** Each with its event, in one statement that is a transaction of its own. */
const writeEntries = ({ writeOne }: Services, entries: readonly Caused[]): Promise<unknown> =>
  writeOne(outgoing => {
    for (const { entry, chain } of entries) withTriggerChain(chain, () => outgoing.audit(entry))
    return { ctes: [], guard: always, columns: sql.fragment`1 as written` }
  })

/**
 * Writes entries that commit with nothing else. Calls of a project that end while some are written have theirs written
 * together: a statement of its own for each was a third of what a call of a tool cost the database. Projects do not wait for
 * each other: the delete of one locks out its entries alone.
 */
const entryWriter = processSingleton(services => {
  const writers = new Map<string | null, Batcher<Caused, unknown>>()

  async function writeAll(entries: Caused[]): Promise<unknown[]> {
    try {
      await writeEntries(services, entries)
      return entries.map(() => null)
    } catch (error) {
      // One that cannot be written takes no other along.
      if (entries.length > 1 && !isTransient(error))
        return (await Promise.all(entries.map(entry => writeAll([entry])))).flat()
      // The entry's event cannot be written for a project that is gone; the entry can, as one of the deployment.
      if (!isProjectDeleted(error)) return entries.map(() => error)
      const [{ entry, chain }] = entries
      return writeAll([{ entry: { ...entry, project_id: null }, chain }])
    }
  }

  return async (entry: AuditEntry): Promise<void> => {
    const { project_id } = entry
    const tenancy = { tenant: project_id, patienceMs: MAX_REQUEST_WAIT_MS }
    const write = (entries: Caused[]) => withTenant(tenancy, () => writeAll(entries))
    const writer = writers.get(project_id) ?? new Batcher(write, { max: TOGETHER })
    writers.set(project_id, writer)
    const failure = await writer.add({ entry, chain: currentTriggerChain() })
    if (!writer.busy) writers.delete(project_id)
    if (failure !== null) throw failure
  }
})

/** How long an answer waits for a database that does not take its audit entry; none that says so itself does. */
const AUDIT_PATIENCE_MS = 5000

/** Writes the entry of a call whose operation holds no transaction of the pipeline's. A failure is logged, no more. */
async function recordEntry(inv: Invocation, status: number, createdId: string | null): Promise<void> {
  const { services, call } = inv
  const entry = inv.recorded ? null : auditEntry(inv, status, createdId)
  inv.recorded = true
  if (!entry) return
  if (call.tx) return call.tx.audit(entry)
  try {
    await retryWhileUnavailable(() => entryWriter(services)(entry), { withinMs: status < 500 ? AUDIT_PATIENCE_MS : 0 })
  } catch (error) {
    services.log.error({ err: error, request_id: call.request.id }, 'audit entry not written')
  }
}

async function recordRead(inv: Invocation, project: string | null, status: number): Promise<void> {
  if (!project || !inv.decided) return
  const reads = readAudit.only()?.(inv.services)
  if (!reads || !(await reads.enabledFor(project))) return
  const entry = auditEntry(inv, status, null)
  if (entry) reads.record(entry)
}

/** Reads that are part of a transaction are noted behind its commit: whether they are to be is asked on another connection. */
async function noteRead(inv: Invocation, project: string | null, status: number): Promise<void> {
  const { call, services } = inv
  if (!call.tx) return recordRead(inv, project, status)
  call.tx.afterCommit(() => {
    recordRead(inv, project, status).catch(error => services.log.error({ err: error }, 'audit entry not written'))
  })
}

/** The entry of a call that was carried out. */
export const auditResult = (inv: Invocation, given: OperationResult): Promise<void> =>
  inv.operation.reads ? noteRead(inv, inv.project, given.status) : recordEntry(inv, given.status, createdId(inv, given))

/** A refused or failed call leaves its entry before the answer goes out. */
export const auditRefusal = (inv: Invocation, error: AppError): Promise<void> =>
  inv.operation.reads ? noteRead(inv, inv.audit.project_id, error.status) : recordEntry(inv, error.status, null)
