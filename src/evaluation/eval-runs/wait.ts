import { subscribeUntil } from '../../core/jobs/subscription.ts'
import type { Services } from '../../core/process/services.ts'
import { type EvalRunRow, evalRunKind, isLive, RUN_CHANNEL } from './model.ts'

/** The floor under the notifications. */
const POLL_MS = 1000

/** Listens for the end of a run before it is made; `wait` gives the run at its end or when SYNC_WAIT_SECONDS are over. */
export function subscribeEvalRun(services: Services, runId: string) {
  const { wait, cancel } = subscribeUntil<EvalRunRow | null>({
    subscribe: notice =>
      services.notifications.listen(RUN_CHANNEL, ended => ended === runId && notice(), { onReconnect: notice }),
    read: () => evalRunKind.find(services.pool, runId),
    isOver: run => !run || !isLive(run),
    pollMs: POLL_MS,
  })
  return {
    cancel,
    wait: (closed: AbortSignal): Promise<EvalRunRow | null> =>
      wait({ closed, withinMs: services.config.SYNC_WAIT_SECONDS * 1000 }),
  }
}
