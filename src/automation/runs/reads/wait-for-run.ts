import { subscribeUntil } from '../../../core/jobs/subscription.ts'
import type { Services } from '../../../core/process/services.ts'
import { onRunChanged } from '../engine/run-notifications.ts'
import { isRunTerminal, type RunRow, runKind } from '../model.ts'

/** The floor under the notifications. */
const POLL_MS = 1000

const isWaitedFor = (run: Pick<RunRow, 'status'>): boolean => isRunTerminal(run) || run.status === 'awaiting_input'

/**
 * Listens for a run before anything moves it. `wait` gives it as it is once it has ended or waits for input, or when
 * ORCHESTRATION_WAIT_MAX_MS are over or the caller is gone; null when the run is gone. Nothing is held meanwhile.
 */
export function subscribeRun(services: Services, runId: string) {
  const { wait, cancel } = subscribeUntil<RunRow | null>({
    subscribe: notice =>
      onRunChanged(services, (id, status) => id === runId && isWaitedFor({ status }) && notice(), notice),
    read: () => runKind.find(services.pool, runId),
    isOver: run => !run || isWaitedFor(run),
    pollMs: POLL_MS,
  })
  return {
    cancel,
    wait: (closed: AbortSignal, known?: RunRow): Promise<RunRow | null> =>
      wait({ closed, withinMs: services.config.ORCHESTRATION_WAIT_MAX_MS, known }),
  }
}
