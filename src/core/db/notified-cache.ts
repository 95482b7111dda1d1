import { Batcher } from './batcher.ts'
import type { Notifications } from './notify.ts'
import type { Tx } from './writer.ts'

const open = new Map<string, Set<NotifiedCache<any>>>()

/**
 * What a process knows by key, read in batches and kept until a notification on `channel` names the key or `maxAgeMs`
 * has passed. While notifications cannot arrive nothing is kept: every `get` reads.
 */
export class NotifiedCache<V extends {}> {
  /** Oldest first. */
  private readonly kept = new Map<string, { value: V; until: number }>()
  private readonly maxAgeMs: number
  private readonly maxEntries: number
  private readonly loads: Batcher<string, V>
  private readonly channel: string
  private readonly notifications: Notifications
  private readonly unlisten: () => void
  private listening = false
  /** Set while a batch of reads is under way: keys that changed since it began; what it read of them is not kept. */
  private changed: Set<string> | null = null
  private cleared = false

  constructor(
    notifications: Notifications,
    options: {
      channel: string
      maxAgeMs: number
      maxEntries?: number
      /** One value per key, in their order. */
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
    const caches = open.get(options.channel) ?? new Set()
    open.set(options.channel, caches.add(this))
  }

  get(key: string): V | Promise<V> {
    if (this.trusted()) {
      const known = this.kept.get(key)
      if (known && known.until > performance.now()) return known.value
    }
    // A read that began before a change is never joined: what waits here is read by the next batch.
    return this.loads.add(key)
  }

  drop(key: string): void {
    this.kept.delete(key)
    this.changed?.add(key)
  }

  clear(): void {
    this.kept.clear()
    this.cleared = true
  }

  close(): void {
    this.unlisten()
    open.get(this.channel)?.delete(this)
  }

  private trusted(): boolean {
    return this.listening && this.notifications.healthy()
  }

  private async load(keys: string[], read: (keys: string[]) => Promise<V[]>): Promise<V[]> {
    const changed = new Set<string>()
    this.changed = changed
    this.cleared = false
    try {
      const distinct = [...new Set(keys)]
      const values = new Map((await read(distinct)).map((value, index) => [distinct[index], value]))
      if (this.trusted() && !this.cleared)
        for (const [key, value] of values) if (!changed.has(key)) this.keep(key, value)
      return keys.map(key => values.get(key) as V)
    } finally {
      this.changed = null
    }
  }

  private keep(key: string, value: V): void {
    this.kept.delete(key)
    this.kept.set(key, { value, until: performance.now() + this.maxAgeMs })
    if (this.kept.size > this.maxEntries) this.kept.delete(this.kept.keys().next().value as string)
  }
}

/**
 * Announces that a key of a channel's caches changes in this transaction: other processes drop it at the commit, this
 * one before the answer goes out.
 */
export function invalidateOnCommit(tx: Pick<Tx, 'invalidate' | 'afterCommit'>, channel: string, key: string): void {
  tx.invalidate(channel, key)
  tx.afterCommit(() => {
    for (const cache of open.get(channel) ?? []) cache.drop(key)
  })
}
