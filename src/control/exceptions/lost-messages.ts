import type { Services } from '#core/base/services.ts'
import { NO_PROJECT, type Queue } from '#core/queues/queue.ts'
import type { MessageClaim } from '#core/work/message-claims.ts'
import { fileExceptionInTx } from './file-exception.ts'

/** Files the exception of a message that ended its workers. */
export async function reportLostMessage(
  services: Services,
  { name: queue }: Queue<any>,
  { id, project, data }: MessageClaim,
): Promise<void> {
  if (project === null || project === NO_PROJECT) return
  const ids = Object.fromEntries(Object.entries(data).filter(([key]) => key === 'id' || key.endsWith('_id')))
  await services.write(async tx => {
    fileExceptionInTx(tx, {
      project_id: project,
      kind: 'worker_lost',
      title: `Work of ${queue} ended its workers`,
      detail: { queue, code: 'WORKER_LOST', message_id: id, ...ids },
      dedup_key: id,
      orchestration_run_id: typeof ids.run_id === 'string' ? ids.run_id : null,
    })
  })
}
