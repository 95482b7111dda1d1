import { LRUCache } from 'lru-cache'
import { withoutTenantLimit } from '../core/db/tenant-context.ts'
import type { Tx } from '../core/db/writer.ts'

/** What a resolved principal was read from, as `<kind>:<id>`. A change of any of it makes the principal stale. */
export type PrincipalSource = `${'user' | 'key' | 'grant' | 'client' | 'policy' | 'project'}:${string}`

export const principalChannel = 'muster_principals'

const MAX_AGE_MS = 5000
const MAX_ENTRIES = 10_000

/**
 * Resolved principals of one process, each for at most five seconds. `load` runs once for concurrent requests; what it
 * read is kept only when none of its sources changed while it was under way.
 */
export class PrincipalCache<V extends { sources: PrincipalSource[] }> {
  private readonly entries = new LRUCache<string, V>({
    max: MAX_ENTRIES,
    ttl: MAX_AGE_MS,
    dispose: (value, key) => this.forget(value, key),
  })
  private readonly bySource = new Map<PrincipalSource, Set<string>>()
  private readonly loads = new Map<
    string,
    { promise: Promise<V | null>; changed: Set<PrincipalSource>; cleared: boolean }
  >()

  /** The principal under a name, from the cache or from `load`. Null is never kept: unknown tokens cost no memory. */
  async get(name: string, load: () => Promise<V | null>): Promise<V | null> {
    const known = this.entries.get(name)
    if (known) return known
    const running = this.loads.get(name)
    // A load that began before a change must not answer a request that came after it.
    if (running && running.changed.size === 0 && !running.cleared) return running.promise
    const started = { promise: withoutTenantLimit(load), changed: new Set<PrincipalSource>(), cleared: false }
    this.loads.set(name, started)
    try {
      const value = await started.promise
      if (value && !started.cleared && !value.sources.some(source => started.changed.has(source)))
        this.keep(name, value)
      return value
    } finally {
      if (this.loads.get(name) === started) this.loads.delete(name)
    }
  }

  /** Drops every principal that was read from a source. */
  drop(source: PrincipalSource): void {
    for (const load of this.loads.values()) load.changed.add(source)
    for (const name of [...(this.bySource.get(source) ?? [])]) this.entries.delete(name)
  }

  clear(): void {
    for (const load of this.loads.values()) load.cleared = true
    this.entries.clear()
  }

  private keep(name: string, value: V) {
    this.entries.set(name, value)
    for (const source of value.sources) {
      const names = this.bySource.get(source)
      if (names) names.add(name)
      else this.bySource.set(source, new Set([name]))
    }
  }

  private forget(value: V, name: string) {
    for (const source of value.sources) {
      const names = this.bySource.get(source)
      names?.delete(name)
      if (names?.size === 0) this.bySource.delete(source)
    }
  }
}

const caches = new Set<PrincipalCache<never>>()

/** Adds a cache to those that `principalsChanged` drops from. @returns what takes it out again */
export function registerCache(cache: PrincipalCache<never>): () => void {
  caches.add(cache)
  return () => caches.delete(cache)
}

/**
 * Announces that what credentials are resolved from changes in this transaction: a user (name, role, password, disabled,
 * attachments), a key (binding, policies, rotation, delete), an OAuth grant (scopes, end) or client (delete), a policy
 * (document) or a project (its bound keys and its grants go with it). Other processes are notified at the commit, this one
 * drops its entries before the answer goes out.
 */
export function principalsChanged(tx: Pick<Tx, 'invalidate' | 'afterCommit'>, ...sources: PrincipalSource[]): void {
  for (const source of sources) tx.invalidate(principalChannel, source)
  tx.afterCommit(() => {
    for (const source of sources) for (const cache of caches) cache.drop(source)
  })
}
