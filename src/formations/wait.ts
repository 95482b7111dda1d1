import { subscribeUntil } from '../core/jobs/subscription.ts'
import type { Services } from '../core/process/services.ts'
import { BUSY, type FormationRow, formationKind } from './model.ts'
import { hearOfFormations } from './news.ts'

/** Fallback for lost notifications. */
const POLL_MS = 1000

/**
 * Listens for the end of the operation of a formation before it begins. `wait` gives the formation once it is over, or as it is
 * when FORMATION_DEPLOY_TIMEOUT_MS are over or the caller is gone; null when it is gone.
 */
export function expectFormation(services: Services, id: string) {
  const { wait, cancel } = subscribeUntil<FormationRow | null>({
    subscribe: notice => hearOfFormations(services, (named, isOver) => isOver && named === id && notice(), notice),
    read: () => formationKind.find(services.pool, id),
    isOver: row => !row || !BUSY.includes(row.status),
    pollMs: POLL_MS,
  })
  return {
    cancel,
    wait: (closed: AbortSignal): Promise<FormationRow | null> =>
      wait({ closed, withinMs: services.config.FORMATION_DEPLOY_TIMEOUT_MS }),
  }
}
