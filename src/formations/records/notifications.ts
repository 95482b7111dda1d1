import type { Services } from '#core/base/services.ts'
import { subscribeUntil } from '#core/work/subscription.ts'
import type { Outbox } from '#core/writes/writer.ts'
import { BUSY_STATUSES, type FormationRow, formationKind } from './model.ts'

/** Payload: the ID of a formation whose operation has progressed, with the suffix ` over` when it has ended. */
const CHANNEL = 'muster_formations'

export const notifyFormation = (outbox: Pick<Outbox, 'notify'>, id: string, isOver = false): void =>
  outbox.notify(CHANNEL, isOver ? `${id} over` : id)

/**
 * Subscribes to operations of formations in all processes. Returns the unsubscribe function.
 * @param onReconnect called after a reconnect, when notifications may have been lost
 */
export const subscribeFormations = (
  { notifications }: Services,
  onChange: (id: string, isOver: boolean) => void,
  onReconnect: () => void,
): (() => void) =>
  notifications.listen(
    CHANNEL,
    payload => {
      const [id, over] = payload.split(' ', 2)
      onChange(id, over !== undefined)
    },
    { onReconnect },
  )

/** Fallback for lost notifications. */
const POLL_MS = 1000

/**
 * Subscribes to the end of the next operation of a formation. `wait` returns the formation when the operation has ended, after
 * FORMATION_DEPLOY_TIMEOUT_MS, or when the request is closed; null if the formation is deleted.
 */
export function subscribeOperationEnd(services: Services, id: string) {
  const { wait, cancel } = subscribeUntil<FormationRow | null>({
    subscribe: notify =>
      subscribeFormations(services, (changed, isOver) => isOver && changed === id && notify(), notify),
    read: () => formationKind.find(services.pool, id),
    isOver: row => !row || !BUSY_STATUSES.includes(row.status),
    pollMs: POLL_MS,
  })
  return {
    cancel,
    wait: (closed: AbortSignal): Promise<FormationRow | null> =>
      wait({ closed, withinMs: services.config.FORMATION_DEPLOY_TIMEOUT_MS }),
  }
}
