import { handler, schedule } from '../../core/jobs/handler.ts'
import { queueMessage } from '../../core/jobs/queue.ts'
import { sweepWorkItems } from '../../core/jobs/work-item.ts'
import type { Services } from '../../core/process/services.ts'
import { expireDue } from './expire.ts'
import { abandonFollowUp, processFollowUp } from './follow-up.ts'
import { approvalSweep, continueQueue, expireQueue } from './queue.ts'
import { followUpWork, listDueApprovals } from './store.ts'

/** Delay after which a message or a worker counts as lost. */
const QUIET_SECONDS = 5
const PAGE = 200
/** Time without a renewed lease after which a follow-up is abandoned, and maximum wait for a worker. */
const LIMITS = { silenceMs: 3_600_000, queueMs: 7 * 86_400_000 }

/** Handlers that expire approvals and process their follow-ups. */
export const approvalHandlers = [
  handler(continueQueue, { leaseSeconds: config => config.GENERATION_LEASE_SECONDS }, processFollowUp),
  handler(expireQueue, {}, ({ approval_id }, { services }) => services.write(tx => expireDue(tx, approval_id))),
  handler(approvalSweep, { concurrency: 1 }, (_message, { services, stopping }) => sweepApprovals(services, stopping)),
]

export const approvalSchedules = [
  schedule('approval.sweep', config => Math.ceil(config.APPROVAL_SWEEP_INTERVAL_MS / 1000), approvalSweep, {}),
]

async function sweepApprovals(services: Services, stopping: AbortSignal): Promise<void> {
  for (let found: readonly string[] = await listDueApprovals(services.pool, PAGE); found.length > 0; ) {
    for (const id of found) {
      if (stopping.aborted) return
      await services.write(tx => expireDue(tx, id))
    }
    found = found.length < PAGE ? [] : await listDueApprovals(services.pool, PAGE)
  }
  await sweepWorkItems(services.pool, {
    attempts: followUpWork,
    quietSeconds: QUIET_SECONDS,
    stopping,
    wake: due =>
      services.queues.send(
        due.map(({ entity, id, project_id }) =>
          queueMessage(continueQueue, { approval_id: entity, attempt_id: id, project_id }),
        ),
      ),
    giveUp: { limits: LIMITS, end: id => abandonFollowUp(services, id, LIMITS) },
  })
}
