import { LRUCache } from 'lru-cache'
import type { Services } from '#core/base/services.ts'
import { withoutTenant } from '#core/db/tenant-context.ts'

const EVERY_MS = 60_000
const FLUSH_MS = 1000

/**
 * Collects the IDs of used keys and writes them in one batch a second later, outside of requests. A key is written at
 * most once a minute.
 */
export function keyUsageLog(
  write: (ids: string[], now: Date) => Promise<unknown>,
  { clock, log }: Pick<Services, 'clock' | 'log'>,
) {
  const noted = new LRUCache<string, true>({ max: 50_000, ttl: EVERY_MS })
  let used = new Set<string>()
  let timer: NodeJS.Timeout | undefined
  let writing = Promise.resolve()

  const flush = () => {
    timer = undefined
    const ids = [...used]
    used = new Set()
    if (ids.length === 0) return
    writing = writing
      .then(() => write(ids, clock.now()))
      .then(
        () => {},
        error => log.warn({ err: error }, 'key usage not recorded'),
      )
  }

  return {
    note(id: string) {
      if (noted.has(id)) return
      noted.set(id, true)
      used.add(id)
      timer ??= setTimeout(() => withoutTenant(flush), FLUSH_MS).unref()
    },
    async close() {
      clearTimeout(timer)
      flush()
      await writing
    },
  }
}
