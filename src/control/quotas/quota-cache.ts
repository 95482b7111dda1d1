import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { invalidateOnCommit, NotifiedCache } from '#core/db/notified-cache.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type CachedQuota, listCachedQuotas } from './store.ts'

/** Invalidation channel; the payload is the id of a project whose cached quota fields changed. */
const quotaChannel = 'muster_quotas'

const MAX_AGE_MS = 5000

/** Cache of quotas by project: a project without quotas of a metric costs no query. */
const quotaCache = processSingleton(
  ({ notifications, pool }: Services) =>
    new NotifiedCache<readonly CachedQuota[]>(notifications, {
      channel: quotaChannel,
      maxAgeMs: MAX_AGE_MS,
      load: async projectIds => {
        const rows = await listCachedQuotas(pool, projectIds)
        return projectIds.map(id => rows.filter(row => row.project_id === id))
      },
    }),
  cache => cache.close(),
)

export const quotasOfProject = (
  services: Pick<Services, 'state'>,
  projectId: string,
): readonly CachedQuota[] | Promise<readonly CachedQuota[]> => quotaCache(services).get(projectId)

/** Invalidates the cached quotas of a project in every process on commit. */
export const invalidateQuotas = (tx: Tx, projectId: string): void => invalidateOnCommit(tx, quotaChannel, projectId)
