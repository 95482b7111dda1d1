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

/** The erasure of everything that a project keeps of what an end user said and was answered. */

export const PurgeAccepted = z
  .object({ job_id: z.string().describe('The work; it ends with an audit entry that has its counts') })
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
/** Until turns that were called off have ended. */
const BUSY_MS = 2000
/** Until a legal hold is asked after again. */
const HELD_MS = 3_600_000
const FIRST_RETRY_MS = 5000
const LONGEST_RETRY_MS = 3_600_000
const QUIET_SECONDS = 5

/** Raises ACTOR_HAS_MESSAGES while content of one of these actors is being erased. */
export async function requireNotPurging(tx: Tx, ...actorIds: readonly string[]): Promise<void> {
  const job_id = await findActivePurge(tx, actorIds)
  if (job_id !== null)
    raise('ACTOR_HAS_MESSAGES', { message: 'Content of the actor is being erased', meta: { job_id } })
}

/** Asks for the erasure. While one is under way, that is the answer. Raises CONTENT_ON_HOLD. */
export async function requestPurge(tx: Tx, caller: Caller, actorId: string): Promise<{ job_id: string }> {
  const { id, project_id } = await actorKind.lock(tx, actorId)
  await requireNoLegalHold(tx, project_id)
  const job = await insertPurge(tx, id, principalRecord(caller))
  if (job.asked) tx.send(purgeQueue, { actor_id: id, job_id: job.id, project_id })
  return { job_id: job.id }
}

export const purgeHandlers = [
  handler(purgeQueue, { leaseSeconds: config => config.GENERATION_LEASE_SECONDS }, workOnPurge),
  handler(purgeSweep, { concurrency: 1 }, (_message, { services, stopping }) =>
    // Never given up: what was asked for has to happen.
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

async function workOnPurge(job: PurgeMessage, context: JobContext): Promise<void> {
  const { services } = context
  const taken = await services.write(async tx => {
    const actor = await actorKind.find(tx, job.actor_id, true)
    if (!actor) return null
    const named = { entity: job.actor_id, id: job.job_id }
    const claim = await claimOrReschedule(tx, actorPurges, named, leaseFor(services), purgeQueue, job)
    return claim === null || claim === 'held' ? null : { actor, claim }
  })
  if (!taken) return
  const { actor, claim } = taken
  await processClaim(context, {
    what: 'purge of an actor',
    ids: { actor_id: actor.id, job_id: claim.id, project_id: actor.project_id },
    attempts: actorPurges,
    claim,
    lease: leaseFor(services),
    // No more than that it is there: turns that end hold it while they wait for what is erased.
    lock: tx => actorKind.find(tx, actor.id),
    work: hold => erase(services, actor, hold),
    async fail(error, failed) {
      if (error instanceof AppError && error.code === 'CONTENT_ON_HOLD')
        return later(services, actor, failed, HELD_MS, { outcome: 'held' })
      services.log.error({ err: error, actor_id: actor.id, job_id: claim.id }, 'content of an actor not erased')
      const delayMs = Math.min(FIRST_RETRY_MS * 4 ** Math.min(failed.failures, 10), LONGEST_RETRY_MS)
      return later(services, actor, failed, delayMs, { outcome: 'retry' }, true)
    },
  })
}

/** Lets the work wait. */
async function later(
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
 * Two passes: a turn that began during the first may have read what was still there, so the second erases what was made
 * until the first one's end.
 */
async function erase(services: Services, actor: ActorRow, hold: ActiveClaim<Purge>): Promise<AttemptOutcome> {
  const { claim } = hold
  const purge: Omit<EndUserPurge, 'until'> = {
    services,
    read: services.pool,
    endUser: endUserOf(actor),
    by: stampOf(claim.principal),
    async write(work) {
      const counts = await hold.write(async tx => {
        // First: a worker that comes after waits for the row of the attempt until this is over.
        await hold.guard(tx)
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
    const last = until !== null
    const at: string = until ?? (await purgeTime(services.pool))
    for (const content of endUserContent.all())
      if ((await content.erase({ ...purge, until: at })) === 'busy')
        return later(services, actor, claim, BUSY_MS, { outcome: 'busy' })
    if (last) break
    until = await purgeTime(services.pool)
    const reached = until
    await hold.write(async tx => {
      await hold.guard(tx)
      await actorPurges.set(tx, claim, sql.fragment`until = ${reached}::timestamptz`)
    })
  }
  const counts = await hold.write(async tx => {
    await hold.guard(tx)
    return finish(tx, services, actor, claim)
  })
  return { outcome: 'erased', ...counts }
}

async function finish(tx: Tx, services: Services, actor: ActorRow, claim: Purge): Promise<Counts> {
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
