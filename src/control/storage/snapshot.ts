import { z } from 'zod'
import type { Services } from '#core/base/services.ts'
import { isProjectDeleted } from '#core/db/sql.ts'
import { entityMailbox, queueMessage } from '#core/queues/queue.ts'
import { type BackgroundTask, handler, schedule } from '#core/work/handler.ts'
import { recordUsage, type UsageDraft } from '../usage/meter.ts'
import { priceBooks } from '../usage/price-cache.ts'
import { listProjectsAfter, measureProject, type StorageSnapshot } from './store.ts'

/**
 * Takes storage snapshots of all projects, or of projects without one for the current day; one message each at a time.
 */
export const snapshotQueue = entityMailbox('storage.snapshot', {
  message: z.object({ all: z.boolean() }),
  key: message => (message.all ? 'all' : 'missing'),
  concern: 'snapshot',
})

const PAGE = 500

/**
 * Measures the storage of projects in one statement and one transaction per project. A project that fails is skipped
 * and retried by the next pass over projects without a snapshot. Returns the numbers of measured and failed projects.
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
    // Loads the prices of the page together, not per project in its transaction.
    await priceBooks(services, ids)
    for (const id of ids) {
      if (options.stopping?.aborted) return { measured, failed }
      try {
        await snapshotProject(services, id, day)
        measured++
      } catch (error) {
        if (isProjectDeleted(error)) continue
        failed++
        log.error({ err: error, project_id: id }, 'storage measurement failed')
      }
    }
    if (ids.length < PAGE) return { measured, failed }
    after = ids[ids.length - 1]
  }
}

const snapshotProject = (services: Services, projectId: string, day: string): Promise<void> =>
  services.write(async tx => {
    const components = usageComponents(await measureProject(tx, projectId, day))
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

/** Returns the usage components of a day, without zero quantities. */
const usageComponents = ({ bytes, chunk_count }: StorageSnapshot) =>
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

/** Runs hourly to include failed and new projects; each project is measured once per UTC day. */
export const snapshotSchedule = schedule('storage snapshots', '2 * * * *', snapshotQueue, { all: false })

export const initialSnapshots: BackgroundTask = {
  name: 'first storage snapshots',
  concern: 'snapshot',
  start({ log, queues }) {
    queues
      .send([queueMessage(snapshotQueue, { all: true })])
      .catch(error => log.error({ err: error }, 'storage snapshot request failed'))
    return undefined
  },
}
