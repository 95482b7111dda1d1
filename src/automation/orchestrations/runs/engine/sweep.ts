import { listMarkedOrchestrations } from '#automation/orchestrations/definition/store.ts'
import { systemClock } from '#core/base/clock.ts'
import { queueMessage } from '#core/queues/queue.ts'
import type { JobContext } from '#core/work/handler.ts'
import { nodeExecutionQueue, removalQueue, runQueue } from '../queue.ts'
import type { RunRef } from '../store.ts'
import {
  listDueRuns,
  listExpiredNodes,
  listStaleQueuedRuns,
  listStaleRunningRuns,
  listStaleWaitingRuns,
  listUnclaimedNodes,
} from './sweep-store.ts'

/** Runs or node executions woken in one statement. */
const BATCH = 1000
/** Waiting runs checked by one statement. */
const WAITING_BATCH = 2000

/**
 * Wakes due runs, node executions of lost workers, and stale runs; resumes the deletion of orchestrations.
 * @param all whether to check waiting runs, too
 */
export async function sweepRuns(
  { services, stopping }: Pick<JobContext, 'services' | 'stopping'>,
  all: boolean,
): Promise<void> {
  const { pool, queues, config } = services
  const interval = config.ORCHESTRATION_SCHEDULER_INTERVAL_MS / 1000
  const wake = (runs: readonly RunRef[]) =>
    queues.send(runs.map(({ id: run_id, project_id }) => queueMessage(runQueue, { run_id, project_id })))
  const due = await listDueRuns(pool, interval, BATCH)
  const lost = [...(await listExpiredNodes(pool, BATCH)), ...(await listUnclaimedNodes(pool, interval, BATCH))]
  const stale = [
    ...(await listStaleQueuedRuns(pool, interval, BATCH)),
    ...(await listStaleRunningRuns(pool, interval, BATCH)),
  ]
  const now = systemClock.now().getTime()
  await queues.send([
    ...due.map(({ id: run_id, project_id, due_at }) => {
      const at = new Date(due_at)
      return queueMessage(runQueue, { run_id, project_id }, at.getTime() > now ? { startAfter: at } : {})
    }),
    ...lost.map(({ id: execution_id, run_id, project_id }) =>
      queueMessage(nodeExecutionQueue, { execution_id, run_id, project_id }),
    ),
  ])
  await wake(stale)
  const marked = await listMarkedOrchestrations(pool, BATCH)
  await queues.send(
    marked.map(({ id: orchestration_id, project_id }) => queueMessage(removalQueue, { orchestration_id, project_id })),
  )
  for (let after: string | null = all ? '' : null; after !== null && !stopping.aborted; ) {
    const found = await listStaleWaitingRuns(pool, { quietSeconds: interval, after, limit: WAITING_BATCH })
    await wake(found.stale)
    after = found.last
  }
}
