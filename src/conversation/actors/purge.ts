import { z } from 'zod'
import { type Counts, type EndUserPurge, endUserContent } from '../../control/retention/erasure.ts'
import { requireNoLegalHold } from '../../control/retention/legal-hold.ts'
import { AppError, raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { srn } from '../../core/api/kind.ts'
import { sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { type Caller, principalRecord } from '../../core/iam/caller.ts'
import { handler, type JobContext, schedule } from '../../core/jobs/handler.ts'
import { entityMailbox, queueMessage, workQueue } from '../../core/jobs/queue.ts'
import {
  type ActiveClaim,
  type AttemptOutcome,
  claimOrReschedule,
  type Lease,
  leaseTimings,
  processClaim,
  sweepWorkItems,
} from '../../core/jobs/work-item.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { type ActorRow, actorKind } from './model.ts'
import {
  actorPurges,
  addToCounts,
  endPurge,
  endUserOf,
  findActivePurge,
  insertPurge,
  type Purge,
  purgeTime,
  stampOf,
} from './purge-store.ts'

/** Erases all content of an end user in a project: messages, turns that answered them, and memories. */

export const PurgeAccepted = z
  .object({ job_id: z.string().describe('ID of the job; the audit entry at its end contains its counts') })
  .meta({ id: 'ActorPurgeAccepted' })

const PurgeMessage = z.object({ actor_id: z.string(), job_id: z.string(), project_id: z.string() })
type PurgeMessage = z.output<typeof PurgeMessage>

const purgeQueue = entityMailbox('actor.purge', {
  message: PurgeMessage,
  concern: 'snapshot',
  key: ({ actor_id }) => actor_id,
  project: ({ project_id }) => project_id,
  retry: { limit: 5, delaySeconds: 5, backoff: true, maxDelaySeconds: 600 },
  leaseSeconds: 60,
})

const purgeSweep = workQueue('actor.sweep_purges', {
  message: z.object({}),
  concern: 'snapshot',
  retry: { limit: 0 },
  leaseSeconds: 60,
})

const leaseFor = ({ config }: Services): Lease => leaseTimings(config.GENERATION_LEASE_SECONDS * 1000)
/** Delay until cancelled turns have ended. */
const BUSY_MS = 2000
/** Delay until a legal hold is checked again. */
const HELD_MS = 3_600_000
const FIRST_RETRY_MS = 5000
const LONGEST_RETRY_MS = 3_600_000
const QUIET_SECONDS = 5

/** @throws ACTOR_HAS_MESSAGES while the content of one of these actors is being erased */
export async function requireNotPurging(tx: Tx, ...actorIds: readonly string[]): Promise<void> {
  const job_id = await findActivePurge(tx, actorIds)
  if (job_id !== null)
    raise('ACTOR_HAS_MESSAGES', { message: `Content of the actor is being erased by job ${job_id}`, meta: { job_id } })
}

/** Requests the erasure and returns its job, or the job in progress. @throws CONTENT_ON_HOLD */
export async function requestPurge(tx: Tx, caller: Caller, actorId: string): Promise<{ job_id: string }> {
  const { id, project_id } = await actorKind.lock(tx, actorId)
  await requireNoLegalHold(tx, project_id)
  const job = await insertPurge(tx, id, principalRecord(caller))
  if (job.created) tx.send(purgeQueue, { actor_id: id, job_id: job.id, project_id })
  return { job_id: job.id }
}

export const purgeHandlers = [
  handler(purgeQueue, { leaseSeconds: config => config.GENERATION_LEASE_SECONDS }, processPurge),
  handler(purgeSweep, { concurrency: 1 }, (_message, { services, stopping }) =>
    // Never abandoned: a requested erasure must complete.
    sweepWorkItems(services.pool, {
      attempts: actorPurges,
      quietSeconds: QUIET_SECONDS,
      stopping,
      wake: due =>
        services.queues.send(
          due.map(({ entity, id, project_id }) =>
            queueMessage(purgeQueue, { actor_id: entity, job_id: id, project_id }),
          ),
        ),
    }),
  ),
]

export const purgeSchedules = [schedule('actor.sweep_purges', 60, purgeSweep, {})]

async function processPurge(job: PurgeMessage, context: JobContext): Promise<void> {
  const { services } = context
  const claimed = await services.write(async tx => {
    const actor = await actorKind.find(tx, job.actor_id, true)
    if (!actor) return null
    const ref = { entity: job.actor_id, id: job.job_id }
    const claim = await claimOrReschedule(tx, actorPurges, ref, leaseFor(services), purgeQueue, job)
    return claim === null || claim === 'held' ? null : { actor, claim }
  })
  if (!claimed) return
  const { actor, claim } = claimed
  await processClaim(context, {
    what: 'actor purge',
    ids: { actor_id: actor.id, job_id: claim.id, project_id: actor.project_id },
    attempts: actorPurges,
    claim,
    lease: leaseFor(services),
    // Without a lock: turns that settle lock the actor while they wait for rows that are being erased.
    lock: tx => actorKind.find(tx, actor.id),
    work: active => eraseContent(services, actor, active),
    async fail(error, failed) {
      if (error instanceof AppError && error.code === 'CONTENT_ON_HOLD')
        return reschedulePurge(services, actor, failed, HELD_MS, { outcome: 'held' })
      services.log.error({ err: error, actor_id: actor.id, job_id: claim.id }, 'actor content erasure failed')
      const delayMs = Math.min(FIRST_RETRY_MS * 4 ** Math.min(failed.failures, 10), LONGEST_RETRY_MS)
      return reschedulePurge(services, actor, failed, delayMs, { outcome: 'retry' }, true)
    },
  })
}

/** Requeues the purge for a later time. */
async function reschedulePurge(
  services: Services,
  { id, project_id }: ActorRow,
  claim: Purge,
  delayMs: number,
  outcome: AttemptOutcome,
  failed = false,
): Promise<AttemptOutcome> {
  await services.write(async tx => {
    if (!(await actorPurges.requeue(tx, claim, { delayMs, failed }))) return
    const job = { actor_id: id, job_id: claim.id, project_id }
    tx.send(purgeQueue, job, { startAfter: new Date(Date.now() + delayMs) })
  })
  return { ...outcome, next_ms: delayMs }
}

/**
 * Erases in two passes: a turn that started during the first may have read content before it was erased, so the second
 * pass erases content created up to the end of the first.
 */
async function eraseContent(services: Services, actor: ActorRow, active: ActiveClaim<Purge>): Promise<AttemptOutcome> {
  const { claim } = active
  const purge: Omit<EndUserPurge, 'until'> = {
    services,
    read: services.pool,
    endUser: endUserOf(actor),
    by: stampOf(claim.principal),
    async write(work) {
      const counts = await active.write(async tx => {
        // First, so that a worker with a newer claim waits for this transaction.
        await active.guard(tx)
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
    const isLastPass = until !== null
    const limit: string = until ?? (await purgeTime(services.pool))
    for (const content of endUserContent.all())
      if ((await content.erase({ ...purge, until: limit })) === 'busy')
        return reschedulePurge(services, actor, claim, BUSY_MS, { outcome: 'busy' })
    if (isLastPass) break
    until = await purgeTime(services.pool)
    const secondPassUntil = until
    await active.write(async tx => {
      await active.guard(tx)
      await actorPurges.set(tx, claim, sql.fragment`until = ${secondPassUntil}::timestamptz`)
    })
  }
  const counts = await active.write(async tx => {
    await active.guard(tx)
    return completePurge(tx, services, actor, claim)
  })
  return { outcome: 'erased', ...counts }
}

async function completePurge(tx: Tx, services: Services, actor: ActorRow, claim: Purge): Promise<Counts> {
  const counts = await endPurge(tx, claim)
  const { type, id } = claim.principal
  tx.audit({
    id: newId('audit'),
    project_id: actor.project_id,
    principal_type: type,
    principal_id: id,
    action: 'actors:PurgeActorContent',
    resource_srn: srn(actor.project_id, actorKind.name, actor.id),
    resource_public_id: actor.id,
    status: 200,
    request_id: null,
    ip: null,
    user_agent: null,
    detail: { kind: 'actor_purge', job_id: claim.id, counts },
    created_at: services.clock.now().toISOString(),
  })
  return counts
}
