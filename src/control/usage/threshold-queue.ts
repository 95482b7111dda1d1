import { z } from 'zod'
import { entityMailbox } from '#core/queues/queue.ts'

/** Wake-ups of projects with thresholds: their usage changed. */
export const thresholdQueue = entityMailbox('usage.check_thresholds', {
  message: z.object({ project_id: z.string() }),
  key: ({ project_id }) => project_id,
  project: ({ project_id }) => project_id,
  concern: 'delivery',
})
