import { setImmediate, setTimeout as sleep } from 'node:timers/promises'
import { withoutTenant } from './tenant-context.ts'
import { withoutTriggerChain } from './trigger-chain.ts'

type BatchOptions = {
  /** Maximum items per batch, default 1000. */
  max?: number
  /** Time that a batch which is not full waits for further items. Default 0: the rest of the turn of the event loop. */
  delayMs?: number
}

/**
 * Micro-batching: items added while a batch runs form the next batch. An idle batcher starts at the end of the turn of
 * the event loop, so a single item has no added latency and a busy batcher amortises its round trips.
 */
export class Batcher<T, R> {
  readonly #run: (items: T[]) => Promise<R[]>
  readonly #max: number
  readonly #delayMs: number
  readonly #closing = new AbortController()
  #pending: { item: T; resolve: (result: R) => void; reject: (error: unknown) => void }[] = []
  #active = 0
  #draining: Promise<void> | null = null

  /** `run` returns one result per item, in order; if it throws, every item of the batch fails with its error. */
  constructor(run: (items: T[]) => Promise<R[]>, { max = 1000, delayMs = 0 }: BatchOptions = {}) {
    this.#run = run
    this.#max = max
    this.#delayMs = delayMs
  }

  /** Number of items without a result. */
  get size(): number {
    return this.#pending.length + this.#active
  }

  add(item: T): Promise<R> {
    return new Promise((resolve, reject) => {
      this.#pending.push({ item, resolve, reject })
      // A batch serves several callers, so it has neither the tenant nor the trigger chain of the first one.
      this.#draining ??= withoutTenant(() => withoutTriggerChain(() => this.#drain()))
    })
  }

  /** Runs the pending items, from now on without a delay. */
  async close(): Promise<void> {
    this.#closing.abort()
    while (this.#draining) await this.#draining
  }

  async #drain(): Promise<void> {
    // Items added in the same turn of the event loop join the first batch.
    await setImmediate()
    while (this.#pending.length > 0) {
      if (this.#delayMs > 0 && this.#pending.length < this.#max)
        await sleep(this.#delayMs, undefined, { signal: this.#closing.signal }).catch(() => {})
      const batch = this.#pending.splice(0, this.#max)
      this.#active = batch.length
      try {
        const results = await this.#run(batch.map(({ item }) => item))
        for (const [index, { resolve }] of batch.entries()) resolve(results[index])
      } catch (error) {
        for (const { reject } of batch) reject(error)
      }
      this.#active = 0
    }
    this.#draining = null
  }
}

/** Returns a function that batches items by key. */
export function batchByKey<K, T, R>(
  run: (key: K, items: T[]) => Promise<R[]>,
  options?: BatchOptions,
): (key: K, item: T) => Promise<R> {
  const batchers = new Map<K, Batcher<T, R>>()
  return async (key, item) => {
    const batcher = batchers.get(key) ?? new Batcher((items: T[]) => run(key, items), options)
    batchers.set(key, batcher)
    try {
      return await batcher.add(item)
    } finally {
      if (batcher.size === 0) batchers.delete(key)
    }
  }
}
