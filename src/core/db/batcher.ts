import { setImmediate } from 'node:timers/promises'
import { withoutTenant } from './tenant-context.ts'
import { withoutTriggerChain } from './trigger-chain.ts'

/**
 * Micro-batching: items added while a batch runs form the next batch. An idle batcher starts at the end of the turn of
 * the event loop, so a single item has no added latency and a busy batcher amortises its round trips.
 */
export class Batcher<T, R> {
  private pending: { item: T; resolve: (result: R) => void; reject: (error: unknown) => void }[] = []
  private running: Promise<void> | null = null
  private readonly run: (items: T[]) => Promise<R[]>
  private readonly max: number

  /** `run` returns one result per item, in order; if it throws, every item of the batch fails with its error. */
  constructor(run: (items: T[]) => Promise<R[]>, options: { max?: number } = {}) {
    this.run = run
    this.max = options.max ?? 1000
  }

  add(item: T): Promise<R> {
    return new Promise((resolve, reject) => {
      this.pending.push({ item, resolve, reject })
      // A batch serves several callers, so it has neither the tenant nor the trigger chain of the first one.
      this.running ??= withoutTenant(() => withoutTriggerChain(() => this.drain()))
    })
  }

  /** Whether items are pending or running. */
  get busy(): boolean {
    return this.running !== null
  }

  /** Resolves when no items are pending or running. */
  async idle(): Promise<void> {
    while (this.running) await this.running
  }

  private async drain(): Promise<void> {
    // Items added in the same turn of the event loop join the first batch.
    await setImmediate()
    while (this.pending.length > 0) {
      const batch = this.pending.splice(0, this.max)
      try {
        const results = await this.run(batch.map(({ item }) => item))
        for (const [index, { resolve }] of batch.entries()) resolve(results[index])
      } catch (error) {
        for (const { reject } of batch) reject(error)
      }
    }
    this.running = null
  }
}
