import type { Services } from '#core/base/services.ts'
import { handler, schedule } from '#core/work/handler.ts'
import { expireDue } from './expire.ts'
import { approvalSweep, expireQueue } from './queue.ts'
import { listExpired } from './store.ts'

const PAGE = 200

/** Expires approvals when their message is due, and by the sweep when it was lost. */
export const approvalHandlers = [
  handler(expireQueue, {}, ({ approval_id }, { services }) => services.write(tx => expireDue(tx, approval_id))),
  handler(approvalSweep, { concurrency: 1 }, (_message, { services, stopping }) => expireAll(services, stopping)),
]

export const approvalSchedules = [
  schedule('approval.sweep', config => Math.ceil(config.APPROVAL_SWEEP_INTERVAL_MS / 1000), approvalSweep, {}),
]

async function expireAll(services: Services, stopping: AbortSignal): Promise<void> {
  for (;;) {
    const found = await listExpired(services.pool, PAGE)
    for (const id of found) {
      if (stopping.aborted) return
      await services.write(tx => expireDue(tx, id))
    }
    if (found.length < PAGE) return
  }
}
