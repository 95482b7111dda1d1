import type { Outbox } from '../core/db/writer.ts'
import type { Services } from '../core/process/services.ts'

/** Carries the id of a formation whose operation has moved or, marked, is over: for those who follow it or wait for it. */
const CHANNEL = 'muster_formations'

export const tellOfFormation = (outgoing: Pick<Outbox, 'notify'>, id: string, isOver = false): void =>
  outgoing.notify(CHANNEL, isOver ? `${id} over` : id)

/**
 * Hears of formations that change, in any process, until it is told to stop.
 * @param reconnected news may have been lost
 */
export const hearOfFormations = (
  { notifications }: Services,
  changed: (id: string, isOver: boolean) => void,
  reconnected: () => void,
): (() => void) =>
  notifications.listen(
    CHANNEL,
    payload => {
      const [id, over] = payload.split(' ', 2)
      changed(id, over !== undefined)
    },
    { onReconnect: reconnected },
  )
