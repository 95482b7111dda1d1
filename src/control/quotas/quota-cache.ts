import { invalidateOnCommit, NotifiedCache } from '../../core/db/notified-cache.ts'
import type { Tx } from '../../core/db/writer.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { type KnownQuota, knownQuotas } from './store.ts'

/** Carries the id of a project whose quotas were added, removed or changed in what processes know of them. */
const quotaChannel = 'muster_quotas'

const MAX_AGE_MS = 5000

/**
 * Which quotas projects have, which is all that a process must know to ask nothing of the database for a project without
 * those of a metric.
 */
const cache = processSingleton(
  ({ notifications, pool }: Services) =>
    new NotifiedCache<readonly KnownQuota[]>(notifications, {
      channel: quotaChannel,
      maxAgeMs: MAX_AGE_MS,
      load: async projectIds => {
        const rows = await knownQuotas(pool, projectIds)
        return projectIds.map(id => rows.filter(row => row.project_id === id))
      },
    }),
  known => known.close(),
)

export const quotasOf = (
  services: Pick<Services, 'state'>,
  projectId: string,
): readonly KnownQuota[] | Promise<readonly KnownQuota[]> => cache(services).get(projectId)

/** Every process must know of a quota before it counts the next request or lets the next work start. */
export const invalidateQuotas = (tx: Tx, projectId: string): void => invalidateOnCommit(tx, quotaChannel, projectId)
