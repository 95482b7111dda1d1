import type { Config } from '../../config.ts'
import type { Fragment } from '../db/sql.ts'
import type { Outbox } from '../db/writer.ts'
import type { Logger } from '../process/log.ts'
import type { Services } from '../process/services.ts'
import type { Queue } from './queue.ts'

/** Declarations of who handles the messages of a queue, when messages come by themselves, and what runs beside them. */

/** What a handler is given besides its message. */
export type JobContext = {
  services: Services
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
  /** Sets the delay before the next try in case this one fails, or hands its message back, instead of the queue's rule. */
  retryIn(ms: number): void
  /**
   * Completes the message with the change that ends its work, in place of a statement afterwards. What is left for the
   * handler must not fail. Not for batches.
   */
  complete(outgoing: Outbox): void
  /**
   * Does work that waits for other messages to be handled: meanwhile the slot is free for those, or they could wait for
   * this one for ever.
   */
  releaseSlotWhile<T>(work: () => Promise<T>): Promise<T>
  /**
   * Takes a slot of another queue for work of a project that would else be a message of it; what is returned gives it back.
   * Null where this process has none free.
   */
  tryAcquireSlot(queue: Queue<any>, project: string): (() => void) | null
}

/** Thrown by a handler to give its message back; the attempt does not count. By a worker that stops it is tried again at once. */
export class RequeueError extends Error {}

export type Handler = {
  queue: Queue<any>
  concurrency?: number | ((config: Config) => number)
  batch?: number
  leaseSeconds?: (config: Config) => number
  graceMs?: (config: Config) => number | null
  handle: (message: any, context: JobContext) => Promise<unknown>
  onExhausted?: (message: any, error: unknown, services: Services) => Promise<unknown>
}

type HandlerOptions<M> = {
  /** Messages (batches for a batch handler) at once in one process; default the worker's concurrency. */
  concurrency?: number | ((config: Config) => number)
  /** The lease by a setting of the deployment, in place of the queue's own. */
  leaseSeconds?: (config: Config) => number
  /** How long a worker that stops lets it finish, by a setting of its own; null is as long as the others. */
  graceMs?: (config: Config) => number | null
  /**
   * Called once the last attempt failed, before the message goes to the dead letter queue: records the failure on the
   * entity, so that it is not blocked. Idempotent: a crash in between calls it again.
   */
  onExhausted?: (message: M, error: unknown, services: Services) => Promise<unknown>
}

/**
 * Declares who handles a queue. With `batch: n` the handler gets up to n messages at once; when it throws, it is called
 * again with each of them alone, and only those that throw then have failed.
 */
export function handler<M extends object>(
  queue: Queue<M>,
  options: HandlerOptions<M> & { batch: number },
  handle: (messages: M[], context: JobContext) => Promise<unknown>,
): Handler
export function handler<M extends object>(
  queue: Queue<M>,
  options: HandlerOptions<M> & { batch?: undefined },
  handle: (message: M, context: JobContext) => Promise<unknown>,
): Handler
export function handler<M extends object>(
  queue: Queue<M>,
  options: HandlerOptions<M> & { batch?: number },
  handle: (message: any, context: JobContext) => Promise<unknown>,
): Handler {
  return { queue, ...options, handle }
}

export type Schedule = {
  name: string
  when: number | string | ((config: Config) => number)
  queue: Queue<any>
  data: (instant: Date) => object
  dueIf?: Fragment | ((services: Services) => Promise<boolean>)
}

/**
 * Declares a schedule: one message per instant in the whole deployment, however many workers run. `when` is a number of
 * seconds (instants are its multiples since 1970; 0: never), a setting of that kind, or a cron expression (UTC). Instants
 * without any worker are skipped, and those at which `dueIf` does not hold: every worker asks. A condition in SQL is asked
 * in one statement with those of the schedules that have the same instants.
 */
export function schedule<M extends object>(
  name: string,
  when: Schedule['when'],
  queue: Queue<M>,
  data: M | ((instant: Date) => M),
  dueIf?: Schedule['dueIf'],
): Schedule {
  return { name, when, queue, data: typeof data === 'function' ? (data as (instant: Date) => M) : () => data, dueIf }
}

/** Work of a worker process that is no queue: a loop over rows, or what has to be done once at its start. */
export type BackgroundTask = {
  name: string
  /** Which worker process runs it (WORKER_KINDS). */
  concern: string
  /** Starts it; `close` ends it and resolves when nothing of it is under way. */
  start(services: Services): { close(): Promise<void> } | undefined
}
