import { LRUCache } from 'lru-cache'
import { withoutTenantLimit } from '#core/db/tenant-context.ts'
import type { Tx } from '#core/writes/writer.ts'

/** Row from which a principal was resolved, as `<kind>:<id>`. A change of it makes the principal stale. */
export type PrincipalSource = `${'user' | 'key' | 'grant' | 'client' | 'policy' | 'project' | 'actor'}:${string}`

export const principalChannel = 'muster_principals'

const MAX_AGE_MS = 5000
const MAX_ENTRIES = 10_000

/**
 * Cache of a process for resolved principals, each for at most five seconds. Concurrent requests share one `load`; its
 * result is cached only if none of its sources changed during the load.
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

  /** Returns a principal from the cache or from `load`. Null is never cached, so unknown tokens use no memory. */
  async get(name: string, load: () => Promise<V | null>): Promise<V | null> {
    const cached = this.entries.get(name)
    if (cached) return cached
    const pending = this.loads.get(name)
    // A load that began before a change must not serve a request that arrived after it.
    if (pending && pending.changed.size === 0 && !pending.cleared) return pending.promise
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

  /** Drops every principal resolved from a source. */
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

/** Registers a cache for `principalsChanged`. @returns a function that unregisters it */
export function registerCache(cache: PrincipalCache<never>): () => void {
  caches.add(cache)
  return () => caches.delete(cache)
}

/**
 * Announces changes in this transaction that affect resolved credentials: of a user (name, role, password, disabled,
 * attachments), a key (binding, policies, rotation, deletion), an OAuth grant (scopes, end), a client (deletion), a
 * policy (document), a project (deletion, with its bound keys and grants) or an actor (deletion, revoked tokens). Other
 * processes are notified on commit; this process drops its entries before it responds.
 */
export function principalsChanged(tx: Pick<Tx, 'invalidate' | 'afterCommit'>, ...sources: PrincipalSource[]): void {
  for (const source of sources) tx.invalidate(principalChannel, source)
  tx.afterCommit(() => {
    for (const source of sources) for (const cache of caches) cache.drop(source)
  })
}
