import { z } from 'zod'
import { isProjectDeleted } from '../../core/db/sql.ts'
import { type BackgroundTask, handler, schedule } from '../../core/jobs/handler.ts'
import { entityMailbox, queueMessage } from '../../core/jobs/queue.ts'
import type { Services } from '../../core/process/services.ts'
import { recordUsage, type UsageDraft } from '../usage/meter.ts'
import { priceBooks } from '../usage/price-cache.ts'
import { listProjectsAfter, measureProject, type StorageSnapshot } from './store.ts'

/** Takes storage snapshots: of all projects, or of those that have none of the day yet. One message of each at a time. */
export const snapshotQueue = entityMailbox('storage.snapshot', {
  message: z.object({ all: z.boolean() }),
  key: message => (message.all ? 'all' : 'missing'),
  concern: 'snapshot',
})

const PAGE = 500

/**
 * Measures what projects store: one statement and one transaction a project, so that none waits for
 * another. A project that cannot be measured is skipped; it has no snapshot of the day and is taken up by the next pass
 * over the missing ones. Returns how many were measured and how many were not.
 */
export async function snapshotProjects(
  services: Services,
  options: { all: boolean; stopping?: AbortSignal },
): Promise<{ measured: number; failed: number }> {
  const { clock, log, pool } = services
  const day = clock.now().toISOString().slice(0, 10)
  let measured = 0
  let failed = 0
  let after = ''
  for (;;) {
    const ids = await listProjectsAfter(pool, after, options.all ? null : day, PAGE)
    // Read at once, not by each project in its transaction.
    await priceBooks(services, ids)
    for (const id of ids) {
      if (options.stopping?.aborted) return { measured, failed }
      try {
        await snapshotProject(services, id, day)
        measured++
      } catch (error) {
        if (isProjectDeleted(error)) continue
        failed++
        log.error({ err: error, project_id: id }, 'storage not measured')
      }
    }
    if (ids.length < PAGE) return { measured, failed }
    after = ids[ids.length - 1]
  }
}

const snapshotProject = (services: Services, projectId: string, day: string): Promise<void> =>
  services.write(async tx => {
    const components = componentsOf(await measureProject(tx, projectId, day))
    if (components.length === 0) return
    const usage: UsageDraft = {
      idempotency_key: `storage:${projectId}:${day}`,
      project_id: projectId,
      meter_type: 'storage',
      provider: 'platform',
      model: 'gb-day',
      source: null,
      components,
    }
    await recordUsage(services, [usage], tx)
  })

/** What is billed for a day; zero quantities are left out. */
const componentsOf = ({ bytes, chunk_count }: StorageSnapshot) =>
  [
    { component: 'gb_day', quantity: bytes / 1e9, unit: 'gb_day', billable: true },
    { component: 'chunk_count', quantity: chunk_count, unit: 'count', billable: true },
  ].filter(({ quantity }) => quantity > 0)

export const snapshotHandler = handler(
  snapshotQueue,
  { concurrency: 1 },
  async ({ all }, { services, log, stopping }) => {
    const started = performance.now()
    const outcome = await snapshotProjects(services, { all, stopping })
    log.info({ all, ...outcome, ms: Math.round(performance.now() - started) }, 'storage measured')
  },
)

/** Projects are due once a UTC day; what failed or was made since is taken up an hour later. */
export const snapshotSchedule = schedule('storage snapshots', '2 * * * *', snapshotQueue, { all: false })

export const initialSnapshots: BackgroundTask = {
  name: 'first storage snapshots',
  concern: 'snapshot',
  start({ log, queues }) {
    queues
      .send([queueMessage(snapshotQueue, { all: true })])
      .catch(error => log.error({ err: error }, 'storage snapshots not asked for'))
    return undefined
  },
}
