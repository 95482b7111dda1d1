import '../src/content/footprint.ts'
import { pruneAudit } from '../src/control/audit/retention.ts'
import { sealEntries, sealQueue } from '../src/control/audit/seal.ts'
import { pruneEvents } from '../src/control/events/retention.ts'
import { pruneCounters } from '../src/control/quotas/prune.ts'
import {
  pruneHeartbeats,
  pruneIdempotencyKeys,
  pruneLoginFailures,
  sweepQueue,
} from '../src/control/retention/sweep.ts'
import { snapshotProjects, snapshotQueue } from '../src/control/storage/snapshot.ts'
import { pruneDeliveries } from '../src/control/webhooks/retention.ts'
import { message } from '../src/core/jobs/queue.ts'
import { type Actor, actor, every } from '../src/core/jobs/worker.ts'
import type { Services } from '../src/core/process/services.ts'
import { sweepDeferredDeletes } from '../src/identity/projects/delete.ts'
import { sweepReplacedValues } from '../src/identity/secrets/operations.ts'
import type { Concern } from './concern.ts'

type Sweep = {
  /** Cron expression in UTC; minutes differ, so that sweeps do not pile up. */
  when: string
  /** Answers how many rows went. */
  run: (services: Services, stopping: AbortSignal) => Promise<number>
}

const sweeps: Record<string, Sweep> = {
  'idempotency keys': { when: '7 * * * *', run: pruneIdempotencyKeys },
  'deferred project deletes': { when: '11 * * * *', run: sweepDeferredDeletes },
  'replaced secret values': { when: '29 * * * *', run: sweepReplacedValues },
  'login failures': { when: '13 3 * * *', run: pruneLoginFailures },
  'worker heartbeats': { when: '17 3 * * *', run: pruneHeartbeats },
  'quota counters': { when: '23 3 * * *', run: pruneCounters },
  'webhook deliveries': { when: '41 3 * * *', run: pruneDeliveries },
  events: { when: '47 3 * * *', run: pruneEvents },
  'audit entries': { when: '31 3 * * *', run: pruneAudit },
}

const SEAL_SECONDS = 5

/** Daily and hourly retention, the hash chain of the audit log, and what projects store. */
export const snapshotActors = (services: Services): Concern => {
  const { log, queues } = services
  queues
    .send([message(snapshotQueue, { all: true })])
    .catch(error => log.error({ err: error }, 'storage snapshots not asked for'))
  return { actors: actorsOf(services), ticks }
}

const actorsOf = (services: Services): Actor[] => [
  actor(sweepQueue, { concurrency: 1 }, async (message, { log, stopping }) => {
    const sweep = sweeps[message.sweep]
    if (!sweep) return
    const started = performance.now()
    const removed = await sweep.run(services, stopping)
    log.info({ sweep: message.sweep, removed, ms: Math.round(performance.now() - started) }, 'sweep done')
  }),
  actor(sealQueue, { concurrency: 1 }, (message, { stopping }) =>
    sealEntries(services.pool, { full: message.full, stopping }),
  ),
  actor(snapshotQueue, { concurrency: 1 }, async ({ all }, { log, stopping }) => {
    const started = performance.now()
    const outcome = await snapshotProjects(services, { all, stopping })
    log.info({ all, ...outcome, ms: Math.round(performance.now() - started) }, 'storage measured')
  }),
]

const ticks = [
  ...Object.entries(sweeps).map(([sweep, { when }]) => every(`sweep ${sweep}`, when, sweepQueue, { sweep })),
  every('seal audit entries', SEAL_SECONDS, sealQueue, { full: false }),
  every('seal late audit entries', '37 3 * * *', sealQueue, { full: true }),
  // Projects are due once a UTC day; what failed or was made since is taken up an hour later.
  every('storage snapshots', '2 * * * *', snapshotQueue, { all: false }),
]
