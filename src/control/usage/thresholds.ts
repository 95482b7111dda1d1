import { z } from 'zod'
import { raiseInvalid } from '../../core/api/errors.ts'
import type { Operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { invalidateOnCommit } from '../../core/db/notified-cache.ts'
import { handler, schedule } from '../../core/jobs/handler.ts'
import { queueMessage, workQueue } from '../../core/jobs/queue.ts'
import type { Services } from '../../core/process/services.ts'
import { usageChannel } from './price-cache.ts'
import { thresholdQueue } from './threshold-queue.ts'
import { type ThresholdRow, thresholdKind, UsageThresholdInput } from './thresholds-model.ts'
import { compareThresholds, countThresholds, projectsToRearm } from './thresholds-store.ts'

const thresholds = resource(thresholdKind, {
  path: '/usage/thresholds',
  tag: 'Usage',
  param: 'threshold_id',
})

/** Most thresholds of a project: one use may reach all of them, which one transaction announces. */
const MAX_THRESHOLDS = 200

const names = { read: 'usage:ListThresholds', write: 'usage:ManageThresholds' }

export const thresholdOperations: Operation[] = [
  thresholds.create({
    summary: 'Announce when the usage of a project reaches a value',
    description:
      '`usage_thresholds.crossed` is emitted when usage is written that reaches it: once a month, or of `rolling_24h` again after the value has fallen below 90 %. What to change is deleted and created anew.',
    action: names.write,
    body: UsageThresholdInput,
    async make({ tx, body, project }) {
      if ((await countThresholds(tx, project)) >= MAX_THRESHOLDS)
        raiseInvalid({ code: 'LIMIT_REACHED', path: '', message: `a project has at most ${MAX_THRESHOLDS} thresholds` })
      const row = await thresholdKind.insert(tx, { ...body, project_id: project })
      invalidateOnCommit(tx, usageChannel, project)
      return row
    },
  }),
  // usage_thresholds_project serves the order.
  thresholds.list({ action: names.read }),
  thresholds.get({ action: names.read }),
  thresholds.remove({
    action: names.write,
    removed: (row, { tx }) => invalidateOnCommit(tx, usageChannel, row.project_id),
  }),
]

const DAY_MS = 86_400_000

/** Compares what a project has used with its thresholds, and announces those that it has reached. */
async function compare(services: Services, project_id: string): Promise<void> {
  const now = services.clock.now()
  const month = now.toISOString().slice(0, 7)
  await services.write(async tx => {
    const changed = await compareThresholds(tx, project_id, {
      month,
      monthStart: new Date(`${month}-01T00:00:00Z`),
      dayStart: new Date(now.getTime() - DAY_MS),
    })
    for (const { observed_value, ...row } of changed) {
      if (row.window === 'rolling_24h' && row.armed) continue
      tx.emit(thresholdKind, 'crossed', row as ThresholdRow, {
        extra: { threshold_id: row.id, window_key: row.window === 'rolling_24h' ? null : month, observed_value },
      })
    }
  })
}

/** Compares again for those that have fired, as a value falls without any usage. */
const rearmQueue = workQueue('usage.rearm_thresholds', {
  message: z.object({}),
  concern: 'delivery',
  retry: { limit: 0 },
})

export const thresholdHandlers = [
  handler(thresholdQueue, {}, ({ project_id }, { services }) => compare(services, project_id)),
  handler(rearmQueue, { concurrency: 1 }, async (_message, { services }) => {
    const projects = await projectsToRearm(services.pool)
    await services.queues.send(projects.map(project_id => queueMessage(thresholdQueue, { project_id })))
  }),
]

const REARM_SECONDS = 60

export const thresholdSchedules = [schedule('usage thresholds', REARM_SECONDS, rearmQueue, {})]
