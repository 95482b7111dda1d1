import { setImmediate } from 'node:timers/promises'
import { withoutTenant } from './tenant-context.ts'
import { withoutTriggerChain } from './trigger-chain.ts'

/**
 * Micro-batching: what is added while a batch is under way is carried out together as the next one. An idle batcher
 * starts at the end of the turn of the event loop, so a lone item waits for nothing and a busy one amortises its round trips.
 */
export class Batcher<T, R> {
  private waiting: { item: T; resolve: (result: R) => void; reject: (error: unknown) => void }[] = []
  private running: Promise<void> | null = null
  private readonly run: (items: T[]) => Promise<R[]>
  private readonly max: number

  /** `run` answers one result per item, in their order; when it throws, every item of the batch fails with its error. */
  constructor(run: (items: T[]) => Promise<R[]>, options: { max?: number } = {}) {
    this.run = run
    this.max = options.max ?? 1000
  }

  add(item: T): Promise<R> {
    return new Promise((resolve, reject) => {
      this.waiting.push({ item, resolve, reject })
      // A batch is of all who wait for it, for whatever cause.
      this.running ??= withoutTenant(() => withoutTriggerChain(() => this.drain()))
    })
  }

  /** Whether something is waiting or under way. */
  get busy(): boolean {
    return this.running !== null
  }

  /** Resolves when nothing is waiting or under way. */
  async idle(): Promise<void> {
    while (this.running) await this.running
  }

  private async drain(): Promise<void> {
    // What is added in the same turn joins the first batch.
    await setImmediate()
    while (this.waiting.length > 0) {
      const batch = this.waiting.splice(0, this.max)
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
