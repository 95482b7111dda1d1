import type { Outbox } from '../../../core/db/writer.ts'
import type { Services } from '../../../core/process/services.ts'
import type { RunRow, RunStatus } from '../model.ts'

/** Carries the id of a run that has changed and what it is now: for those who wait for it or follow it. */
const CHANNEL = 'muster_orchestration_runs'

export const notifyRunChanged = (
  outgoing: Pick<Outbox, 'notify'>,
  { id, status }: Pick<RunRow, 'id' | 'status'>,
): void => outgoing.notify(CHANNEL, `${id} ${status}`)

/**
 * Hears of runs that change, in any process, until it is told to stop.
 * @param reconnected news may have been lost
 */
export const onRunChanged = (
  { notifications }: Services,
  changed: (id: string, status: RunStatus) => void,
  reconnected: () => void,
): (() => void) =>
  notifications.listen(
    CHANNEL,
    news => {
      const [id, status] = news.split(' ')
      changed(id, status as RunStatus)
    },
    { onReconnect: reconnected },
  )
