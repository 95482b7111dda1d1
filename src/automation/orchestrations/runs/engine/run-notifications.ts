import type { Services } from '#core/base/services.ts'
import { subscribeUntil } from '#core/work/subscription.ts'
import { waiters } from '#core/work/waiters.ts'
import type { Outbox } from '#core/writes/writer.ts'
import { isRunTerminal, type RunRow, type RunStatus, runKind } from '../model.ts'

/** Rows that wait for the end of a run or for its request of input. */
export const runWaiters = waiters<RunRow>('runs', 'automation/orchestrations/runs/engine')

/** Channel whose payload is the ID and the new status of a changed run. */
const CHANNEL = 'muster_orchestration_runs'

export const notifyRunChanged = (outbox: Pick<Outbox, 'notify'>, { id, status }: Pick<RunRow, 'id' | 'status'>): void =>
  outbox.notify(CHANNEL, `${id} ${status}`)

/**
 * Subscribes to changes of runs in all processes; returns the function that unsubscribes.
 * @param reconnected called when notifications may have been lost
 */
export const onRunChanged = (
  { notifications }: Services,
  changed: (id: string, status: RunStatus) => void,
  reconnected: () => void,
): (() => void) =>
  notifications.listen(
    CHANNEL,
    payload => {
      const [id, status] = payload.split(' ')
      changed(id, status as RunStatus)
    },
    { onReconnect: reconnected },
  )

/** Polling interval in case a notification is lost. */
const POLL_MS = 1000

const endsWait = (run: Pick<RunRow, 'status'>): boolean => isRunTerminal(run) || run.status === 'awaiting_input'

/**
 * Subscribes to a run before it changes. `wait` returns the run when it has ended or awaits input, after
 * ORCHESTRATION_WAIT_MAX_MS, or when the caller disconnects; null if the run is missing. No connection is held
 * meanwhile.
 */
export function subscribeRun(services: Services, runId: string) {
  const { wait, cancel } = subscribeUntil<RunRow | null>({
    subscribe: onChange =>
      onRunChanged(services, (id, status) => id === runId && endsWait({ status }) && onChange(), onChange),
    read: () => runKind.find(services.pool, runId),
    isOver: run => !run || endsWait(run),
    pollMs: POLL_MS,
  })
  return {
    cancel,
    wait: (closed: AbortSignal, known?: RunRow): Promise<RunRow | null> =>
      wait({ closed, withinMs: services.config.ORCHESTRATION_WAIT_MAX_MS, known }),
  }
}
