import { Batcher } from './batcher.ts'
import type { Notifications } from './notify.ts'

/** The part of a transaction that acts with its commit. */
type Committing = {
  invalidate(channel: string, key: string): void
  afterCommit(action: () => void): void
}

const openCaches = new Map<string, Set<NotifiedCache<any>>>()

/**
 * In-process cache, loaded in batches. An entry is valid until a notification on `channel` names its key or `maxAgeMs`
 * has passed. While notifications cannot arrive, nothing is cached and every `get` reads.
 */
export class NotifiedCache<V extends {}> {
  /** Oldest first. */
  private readonly entries = new Map<string, { value: V; until: number }>()
  private readonly maxAgeMs: number
  private readonly maxEntries: number
  private readonly loads: Batcher<string, V>
  private readonly channel: string
  private readonly notifications: Notifications
  private readonly unlisten: () => void
  private listening = false
  /**
   * Keys that changed since the running batch of reads began, whose values are not cached. Null while no batch runs.
   */
  private changed: Set<string> | null = null
  private cleared = false

  constructor(
    notifications: Notifications,
    options: {
      channel: string
      maxAgeMs: number
      maxEntries?: number
      /** Returns one value per key, in the same order. */
      load: (keys: string[]) => Promise<V[]>
    },
  ) {
    this.notifications = notifications
    this.channel = options.channel
    this.maxAgeMs = options.maxAgeMs
    this.maxEntries = options.maxEntries ?? 10_000
    this.loads = new Batcher(keys => this.load(keys, options.load))
    const unlisten = notifications.listen(options.channel, key => this.drop(key), { onReconnect: () => this.clear() })
    this.unlisten = unlisten
    void unlisten.ready.then(() => {
      this.clear()
      this.listening = true
    })
    const caches = openCaches.get(options.channel) ?? new Set()
    openCaches.set(options.channel, caches.add(this))
  }

  get(key: string): V | Promise<V> {
    if (this.isTrusted()) {
      const entry = this.entries.get(key)
      if (entry && entry.until > performance.now()) return entry.value
    }
    // Read by the next batch, so that a running read which began before a change is never joined.
    return this.loads.add(key)
  }

  drop(key: string): void {
    this.entries.delete(key)
    this.changed?.add(key)
  }

  clear(): void {
    this.entries.clear()
    this.cleared = true
  }

  close(): void {
    this.unlisten()
    openCaches.get(this.channel)?.delete(this)
  }

  private isTrusted(): boolean {
    return this.listening && this.notifications.healthy()
  }

  private async load(keys: string[], read: (keys: string[]) => Promise<V[]>): Promise<V[]> {
    const changed = new Set<string>()
    this.changed = changed
    this.cleared = false
    try {
      const distinct = [...new Set(keys)]
      const values = new Map((await read(distinct)).map((value, index) => [distinct[index], value]))
      if (this.isTrusted() && !this.cleared)
        for (const [key, value] of values) if (!changed.has(key)) this.store(key, value)
      return keys.map(key => values.get(key) as V)
    } finally {
      this.changed = null
    }
  }

  private store(key: string, value: V): void {
    this.entries.delete(key)
    this.entries.set(key, { value, until: performance.now() + this.maxAgeMs })
    if (this.entries.size > this.maxEntries) this.entries.delete(this.entries.keys().next().value as string)
  }
}

/** Clears all caches of this process. */
export function clearNotifiedCaches(): void {
  for (const caches of openCaches.values()) for (const cache of caches) cache.clear()
}

/**
 * Invalidates a key in the caches of a channel: in other processes with the commit, in this one before the response.
 */
export function invalidateOnCommit(tx: Committing, channel: string, key: string): void {
  tx.invalidate(channel, key)
  tx.afterCommit(() => {
    for (const cache of openCaches.get(channel) ?? []) cache.drop(key)
  })
}
