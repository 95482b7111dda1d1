import type { Logger } from 'pino'
import type { Queue } from './queue.ts'

/** Declarations of who handles the messages of a queue; importing them starts nothing (core/worker does). */

/** What a handler is told and may ask for. */
export type Context = {
  /** 1 for the first try. Attempts that were handed back do not count. */
  attempt: number
  /** True when a failure of this attempt is final. */
  last: boolean
  /** The message's id; of the first message for a batch. */
  id: string
  /** Aborted when the lease was lost or the worker stops hard: write nothing more, leave. */
  signal: AbortSignal
  /** Aborted when the worker was asked to stop: finish soon, or commit what is settled and throw HandBack. */
  stopping: AbortSignal
  log: Logger
  /** Sets the delay before the next try in case this one fails, instead of the queue's rule. */
  retryIn(ms: number): void
}

/** Thrown by a handler to give its message back at once; the attempt does not count. */
export class HandBack extends Error {}

export type Actor = {
  queue: Queue<any>
  concurrency?: number
  batch?: number
  handle: (message: any, context: Context) => Promise<unknown>
  onExhausted?: (message: any, error: unknown) => Promise<unknown>
}

type ActorOptions<M> = {
  /** Messages (batches for a batch actor) at once in one process; default the worker's concurrency. */
  concurrency?: number
  /**
   * Called once the last attempt failed, before the message goes to the dead letter queue: records the failure on the
   * entity, so that it is not blocked. Idempotent: a crash in between calls it again.
   */
  onExhausted?: (message: M, error: unknown) => Promise<unknown>
}

/**
 * Declares who handles a queue. With `batch: n` the handler gets up to n messages at once; when it throws, it is called
 * again with each of them alone, and only those that throw then have failed.
 */
export function actor<M extends object>(
  queue: Queue<M>,
  options: ActorOptions<M> & { batch: number },
  handler: (messages: M[], context: Context) => Promise<unknown>,
): Actor
export function actor<M extends object>(
  queue: Queue<M>,
  options: ActorOptions<M> & { batch?: undefined },
  handler: (message: M, context: Context) => Promise<unknown>,
): Actor
export function actor<M extends object>(
  queue: Queue<M>,
  options: ActorOptions<M> & { batch?: number },
  handle: (message: any, context: Context) => Promise<unknown>,
): Actor {
  return { queue, ...options, handle }
}

export type Tick = { name: string; when: number | string; queue: Queue<any>; data: (instant: Date) => object }

/**
 * Declares a tick: one message per instant in the whole deployment, however many workers run. `when` is a number of
 * seconds (instants are its multiples since 1970) or a cron expression (UTC). Instants without any worker are skipped.
 */
export function every<M extends object>(
  name: string,
  when: number | string,
  queue: Queue<M>,
  data: M | ((instant: Date) => M),
): Tick {
  return { name, when, queue, data: typeof data === 'function' ? (data as (instant: Date) => M) : () => data }
}
