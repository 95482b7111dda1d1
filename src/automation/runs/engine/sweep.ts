import type { JobContext } from '../../../core/jobs/handler.ts'
import { queueMessage } from '../../../core/jobs/queue.ts'
import { markedOrchestrations } from '../../orchestrations/store.ts'
import { nodeExecutionQueue, removalQueue, runQueue } from '../queue.ts'
import type { NamedRun } from '../store.ts'
import {
  dueRuns,
  listExpiredNodes,
  listStaleQueuedRuns,
  listStaleRunningRuns,
  listStaleWaitingRuns,
  listUnclaimedNodes,
} from './sweep-store.ts'

/** What is woken by one statement. */
const SWEPT = 1000
/** Runs that wait of which one statement asks whether anything has happened. */
const LOOKED = 2000

/**
 * Wakes runs whose time has come or is about to, what a lost worker left, and what has been quiet for no reason, and has
 * orchestrations deleted that are marked.
 * @param all also looks through the runs that wait
 */
export async function sweepRuns(
  { services, stopping }: Pick<JobContext, 'services' | 'stopping'>,
  all: boolean,
): Promise<void> {
  const { pool, queues, config } = services
  const interval = config.ORCHESTRATION_SCHEDULER_INTERVAL_MS / 1000
  const wake = (runs: readonly NamedRun[]) =>
    queues.send(runs.map(({ id: run_id, project_id }) => queueMessage(runQueue, { run_id, project_id })))
  const due = await dueRuns(pool, interval, SWEPT)
  const lost = [...(await listExpiredNodes(pool, SWEPT)), ...(await listUnclaimedNodes(pool, interval, SWEPT))]
  const left = [
    ...(await listStaleQueuedRuns(pool, interval, SWEPT)),
    ...(await listStaleRunningRuns(pool, interval, SWEPT)),
  ]
  const now = Date.now()
  await queues.send([
    ...due.map(({ id: run_id, project_id, due_at }) => {
      const at = new Date(due_at)
      return queueMessage(runQueue, { run_id, project_id }, at.getTime() > now ? { startAfter: at } : {})
    }),
    ...lost.map(({ id: execution_id, run_id, project_id }) =>
      queueMessage(nodeExecutionQueue, { execution_id, run_id, project_id }),
    ),
  ])
  await wake(left)
  const marked = await markedOrchestrations(pool, SWEPT)
  await queues.send(
    marked.map(({ id: orchestration_id, project_id }) => queueMessage(removalQueue, { orchestration_id, project_id })),
  )
  for (let after: string | null = all ? '' : null; after !== null && !stopping.aborted; ) {
    const found = await listStaleWaitingRuns(pool, { quietSeconds: interval, after, limit: LOOKED })
    await wake(found.left)
    after = found.last
  }
}
