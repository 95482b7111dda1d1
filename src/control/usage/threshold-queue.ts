import { z } from 'zod'
import { entityMailbox } from '../../core/jobs/queue.ts'

/** Sent with the usage of a project that has thresholds: what it comes to is compared with them. */
export const thresholdQueue = entityMailbox('usage.check_thresholds', {
  message: z.object({ project_id: z.string() }),
  key: ({ project_id }) => project_id,
  project: ({ project_id }) => project_id,
  concern: 'delivery',
})
