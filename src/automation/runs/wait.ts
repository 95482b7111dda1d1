import { expectEnd } from '../../core/jobs/wait.ts'
import type { Services } from '../../core/process/services.ts'
import { hasEnded, RUN_CHANNEL, type RunRow, runKind } from './model.ts'

/** The floor under the notifications. */
const POLL_MS = 1000

/**
 * Listens for a run before anything moves it. `wait` gives it as it is once it has ended or waits for input, or when
 * ORCHESTRATION_WAIT_MAX_MS are over or the caller is gone; null when the run is gone. Nothing is held meanwhile.
 */
export function expectRun(services: Services, runId: string) {
  const { wait, cancel } = expectEnd<RunRow | null>({
    subscribe: notice =>
      services.notifications.listen(RUN_CHANNEL, changed => changed === runId && notice(), { onReconnect: notice }),
    read: () => runKind.find(services.pool, runId),
    isOver: run => !run || hasEnded(run) || run.status === 'awaiting_input',
    pollMs: POLL_MS,
  })
  return {
    cancel,
    wait: (closed: AbortSignal, known?: RunRow): Promise<RunRow | null> =>
      wait({ closed, withinMs: services.config.ORCHESTRATION_WAIT_MAX_MS, known }),
  }
}
