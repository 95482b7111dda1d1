import { message } from '../../core/jobs/queue.ts'
import type { Services } from '../../core/process/services.ts'
import { ingestionQueue } from './queue.ts'
import { limitsOf, settleStalled } from './settle.ts'
import { type Due, dueAttempts } from './store.ts'

const PAGE = 500
/** An attempt this late has lost its message, or its worker. */
const QUIET_SECONDS = 5

/**
 * The floor under the wake-ups: attempts that are due get a message again, which is dropped where one waits already;
 * those that have taken too long are ended.
 */
export async function sweepAttempts(services: Services, stopping: AbortSignal): Promise<void> {
  let after: Due | null = null
  for (;;) {
    const found: readonly Due[] = await dueAttempts(services.pool, limitsOf(services), {
      quietSeconds: QUIET_SECONDS,
      after,
      limit: PAGE,
    })
    const waiting = found.filter(({ stalled }) => !stalled)
    if (waiting.length > 0)
      await services.queues.send(
        waiting.map(({ document_id, id, project_id }) =>
          message(ingestionQueue, { document_id, attempt_id: id, project_id }),
        ),
      )
    for (const { document_id } of found.filter(({ stalled }) => stalled)) {
      if (stopping.aborted) return
      await settleStalled(services, document_id)
    }
    if (found.length < PAGE || stopping.aborted) return
    after = found[found.length - 1]
  }
}
