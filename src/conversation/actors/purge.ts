import { z } from 'zod'
import { type Counts, type EndUserPurge, endUserContent, sumCounts } from '#control/retention/erasure.ts'
import { requireNoLegalHold } from '#control/retention/legal-hold.ts'
import { srn } from '#core/api/kind.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import type { Services } from '#core/base/services.ts'
import { isLockTimeout, isWaitedFor } from '#core/db/lock-waits.ts'
import { sql } from '#core/db/sql.ts'
import { setForTransaction } from '#core/db/transaction-settings.ts'
import { type Caller, principalRecord } from '#core/iam/caller.ts'
import type { AttemptFields, WorkAttempt } from '#core/work/attempt.ts'
import { exponential, UNLIMITED } from '#core/work/retry.ts'
import type { WorkClaim } from '#core/work/store.ts'
import { work } from '#core/work/work.ts'
import { newAuditEntry } from '#core/writes/audit-entry.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type ActorRow, actorKind } from './model.ts'
import {
  addToCounts,
  endUserOf,
  findActivePurge,
  insertPurge,
  type PurgeColumns,
  purgeColumns,
  purgeCounts,
  purgeTime,
  stampOf,
} from './purge-store.ts'

/** Erases all content of an end user in a project: messages, turns that answered them, and memories. */

export const PurgeAccepted = z
  .object({ job_id: z.string().describe('ID of the job; the audit entry at its end contains its counts') })
  .meta({ id: 'ActorPurgeAccepted' })

export const PurgeDryRun = z
  .object({
    dry_run: z.literal(true),
    counts: z.record(z.string(), z.int()).describe('Number of records that would lose content, by kind'),
    complete: z
      .boolean()
      .describe(
        'Whether the counts are complete: not with an active turn, with more content than is counted in time, or if other requests need the records',
      ),
  })
  .meta({ id: 'ActorPurgeDryRun' })

/** Delay until aborted turns have settled. */
const BUSY_MS = 2000
/** Delay until a legal hold is checked again. */
const HELD_MS = 3_600_000

/** @throws ACTOR_HAS_MESSAGES while the content of one of these actors is being erased */
export async function requireNotPurging(tx: Tx, ...actorIds: readonly string[]): Promise<void> {
  const job_id = await findActivePurge(tx, actorIds)
  if (job_id !== null)
    raise('ACTOR_HAS_MESSAGES', { message: `Content of the actor is being erased by job ${job_id}`, meta: { job_id } })
}

/** Starts the purge of an actor, or returns the active one. Raises CONTENT_ON_HOLD. */
export async function requestPurge(tx: Tx, caller: Caller, actorId: string): Promise<{ job_id: string }> {
  const { id, project_id } = await actorKind.lock(tx, actorId)
  await requireNoLegalHold(tx, project_id)
  const job = await insertPurge(tx, id, principalRecord(caller))
  if (job.isNew) purgeWork.wake(tx, { entity: id, id: job.id, project_id })
  return { job_id: job.id }
}

/** Time after which a dry run counts no further records, between checks for others that need them, and to wait for their locks. */
const DRY_RUN_MS = 5000
const LOCK_CHECK_MS = 100
const LOCK_WAIT_MS = 250

class DryRunEnded extends Error {}

/**
 * Counts what a purge would erase: the erasers run in a transaction that is rolled back. It costs as much as the purge, so it ends after
 * DRY_RUN_MS, and as soon as another transaction waits for its locks. Raises CONTENT_ON_HOLD.
 */
export async function countPurge(
  tx: Tx,
  services: Services,
  caller: Caller,
  actor: ActorRow,
): Promise<z.output<typeof PurgeDryRun>> {
  await requireNoLegalHold(tx, actor.project_id)
  const end = performance.now() + DRY_RUN_MS
  let checkAt = performance.now() + LOCK_CHECK_MS
  let counts: Counts = {}
  let complete = false
  const count = async (inner: Tx): Promise<never> => {
    await setForTransaction(inner, { lock_timeout: `${LOCK_WAIT_MS}ms` })
    const purge: EndUserPurge = {
      services,
      read: inner,
      endUser: endUserOf(actor),
      by: stampOf(principalRecord(caller)),
      until: await purgeTime(inner),
      async write(work) {
        if (performance.now() > end) throw new DryRunEnded()
        if (performance.now() > checkAt) {
          if (await isWaitedFor(inner)) throw new DryRunEnded()
          checkAt = performance.now() + LOCK_CHECK_MS
        }
        const erased = await inner.nested(work)
        counts = sumCounts(counts, erased)
        return erased
      },
    }
    const outcomes: string[] = []
    for (const content of endUserContent.all()) outcomes.push(await content.erase(purge))
    complete = !outcomes.includes('busy')
    throw new DryRunEnded()
  }
  await tx.nested(count).catch(error => {
    if (!(error instanceof DryRunEnded) && !isLockTimeout(error)) throw error
  })
  return { dry_run: true, counts, complete }
}

/** Erases the content of an end user. Never abandoned: a requested erasure has to happen. */
export const purgeWork = work({
  name: 'actor.purge',
  concern: 'snapshot',
  entity: actorKind,
  table: 'actor_purges',
  entityColumn: 'actor_id',
  columns: purgeColumns,
  ids: ({ id, project_id }, { id: job_id }) => ({ actor_id: id, job_id, project_id }),
  leaseSeconds: config => config.GENERATION_LEASE_SECONDS,
  // Turns that settle hold the actor while they wait for rows that the purge erases.
  locksEntity: false,
  retry: { ...UNLIMITED, delayMs: exponential(5000, { factor: 4 }) },
  deferral: error => (error instanceof AppError && error.code === 'CONTENT_ON_HOLD' ? HELD_MS : null),
  sweep: { seconds: 60 },
  run: erase,
  fail: () => Promise.resolve(undefined),
})

/**
 * Erases in two passes: a turn that began during the first may have read content before its erasure, so the second erases
 * records created until the end of the first.
 */
async function erase({
  services,
  entity: actor,
  claim,
  write,
  set,
  settle,
  reschedule,
}: WorkAttempt<ActorRow, PurgeColumns>): Promise<AttemptFields> {
  const purge: Omit<EndUserPurge, 'until'> = {
    services,
    read: services.pool,
    endUser: endUserOf(actor),
    by: stampOf(claim.principal),
    async write(work) {
      const counts = await write(async tx => {
        await requireNoLegalHold(tx, actor.project_id)
        const erased = await work(tx)
        await addToCounts(tx, actor.id, erased)
        return erased
      })
      await injectFault(services, 'content_erased')
      return counts
    },
  }
  for (let { until } = claim; ; ) {
    const isLast = until !== null
    const at: string = until ?? (await purgeTime(services.pool))
    for (const content of endUserContent.all()) {
      if ((await content.erase({ ...purge, until: at })) !== 'busy') continue
      await reschedule(BUSY_MS)
      return { outcome: 'busy', next_ms: BUSY_MS }
    }
    if (isLast) break
    until = await purgeTime(services.pool)
    await set(services.pool, sql.fragment`until = ${until}::timestamptz`)
  }
  const counts = await purgeCounts(services.pool, actor.id)
  await settle(tx => recordPurge(tx, services, actor, claim, counts))
  return { outcome: 'erased', ...counts }
}

/** Writes the audit entry of a purge, with its counts. */
async function recordPurge(
  tx: Tx,
  services: Services,
  actor: ActorRow,
  claim: WorkClaim & PurgeColumns,
  counts: Counts,
): Promise<void> {
  const { type, id } = claim.principal
  tx.audit(
    newAuditEntry({
      project_id: actor.project_id,
      principal_type: type,
      principal_id: id,
      action: 'actors:PurgeActorContent',
      resource_srn: srn(actor.project_id, actorKind.name, actor.id),
      resource_public_id: actor.id,
      detail: { kind: 'actor_purge', job_id: claim.id, counts },
      created_at: services.clock.now().toISOString(),
    }),
  )
}
