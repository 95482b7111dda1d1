import type { Config } from '../base/config.ts'
import { AttemptEndedError } from '../base/errors.ts'
import type { Logger } from '../base/log.ts'
import type { Services } from '../base/services.ts'
import type { Fragment } from '../db/sql.ts'
import type { SlotHolder } from '../net/hanging-calls.ts'
import type { Queue } from '../queues/queue.ts'
import type { SuspectSource } from '../queues/suspects.ts'
import type { Outbox } from '../writes/writer.ts'
import type { LostClaim } from './message-claims.ts'

/** Declarations of queue handlers, schedules and background tasks. */

/** Context of one call of a handler. */
export type JobContext = {
  services: Services
  /** Number of this attempt, from 1. Requeued attempts do not count. */
  attempt: number
  /** Whether a failure of this attempt is final. */
  last: boolean
  /** ID of the message; of the first message for a batch. */
  id: string
  /** The last claim of the message that was lost; null without one. Later attempts that ended otherwise leave it unchanged. */
  lostClaim: LostClaim | null
  /** Aborted when the lease is lost or the grace period is over: stop without writing. */
  signal: AbortSignal
  /**
   * What the claim of the message has read (`preload`). Null if the handler declares none, the row was too large or not eligible,
   * or the claim was repeated without it.
   */
  preloaded: string | null
  /** Aborted when the worker is stopping: finish soon, or commit the completed part and throw RequeueError. */
  stopping: AbortSignal
  log: Logger
  /** Overrides the delay before the next attempt if this one fails or is requeued. */
  retryIn(ms: number): void
  /**
   * Completes the message in the same transaction as the handler's last write, which saves a statement. The rest of the
   * handler must not fail. Not available for batches.
   */
  complete(outbox: Outbox): void
  /** Releases the slot while `work` waits for other messages, which could otherwise deadlock on the slots. */
  releaseSlotWhile<T>(work: () => Promise<T>): Promise<T>
  /**
   * Acquires a slot of another queue, for work that would otherwise be a message of that queue. Returns null if
   * this process has no free slot.
   */
  tryAcquireSlot(queue: Queue<any>, project: string): AcquiredSlot | null
}

/** A slot of another queue: for `withSlotHolder`, and the function that releases it. */
export type AcquiredSlot = { holder: SlotHolder; release(): void }

/**
 * Thrown by a handler to requeue its message without counting the attempt; due immediately if the worker is stopping.
 */
export class RequeueError extends AttemptEndedError {}

/** A newer claim exists, or the item was deleted: the attempt must stop without writing. */
export class ClaimLostError extends AttemptEndedError {}

export type Handler = {
  queue: Queue<any>
  concurrency?: number | ((config: Config) => number)
  batch?: number
  leaseSeconds?: (config: Config) => number
  graceMs?: (config: Config) => number | null
  handle: (message: any, context: JobContext) => Promise<unknown>
  onExhausted?: (message: any, error: unknown, services: Services) => Promise<unknown>
  boundsLosses?: boolean
  maxLosses?: number
  preload?: () => Fragment
}

/** Slots of a handler in one worker, and how many of them one project may hold while others wait. */
export type QueueSlots = { slots: number; share: number }

/** Returns the slots of a handler in a worker with this configuration. */
export function slotsOf(
  { queue, concurrency, batch = 1 }: Handler,
  config: Config,
  { slots: byDefault = config.WORKER_CONCURRENCY, projectShare = config.PROJECT_WORKER_SHARE } = {},
): QueueSlots {
  const slots = (typeof concurrency === 'function' ? concurrency(config) : concurrency) ?? byDefault
  const isShared = queue.project !== undefined && batch === 1
  return { slots, share: isShared ? fairShare(slots, projectShare) : slots * batch }
}

/** Returns the slots that one project may hold while others wait. */
export const fairShare = (slots: number, projectShare: number): number => Math.max(1, Math.ceil(slots * projectShare))

type HandlerOptions<M> = {
  /** Concurrent messages (batches for a batch handler) per process, default the worker's concurrency. */
  concurrency?: number | ((config: Config) => number)
  /** Overrides the lease of the queue. */
  leaseSeconds?: (config: Config) => number
  /** Overrides the grace period of a stopping worker; null for the worker's default. */
  graceMs?: (config: Config) => number | null
  /**
   * Called after the last attempt failed, before the message moves to the dead letter queue: records the failure on the
   * entity, so that it is not blocked. Must be idempotent: it is called again after a crash.
   */
  onExhausted?: (message: M, error: unknown, services: Services) => Promise<unknown>
  /**
   * Whether the handler counts lost workers in its rows and fails the work itself, by its own limit. Otherwise a message that
   * ended `maxLosses` workers fails with WORKER_LOST.
   */
  boundsLosses?: boolean
  /**
   * A select of one text that the claim of a message runs, which saves a statement: of at most one row, for the message
   * `claimed`, without values. It may be from before another process had the message: a write that relies on it is fenced, and
   * without effect reads again. It must be small, because the claims of all projects wait for it. Only for a queue whose
   * messages have projects, without batches.
   */
  preload?: () => Fragment
  /** Default MAX_WORKER_LOSSES. More for messages whose loss is specified to be survived more often. */
  maxLosses?: number
}

/**
 * Declares the handler of a queue. With `batch: n` it receives up to n messages per call. If that call throws, it is
 * called again with each message separately, and only the messages for which it throws again have failed.
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
  if (options.preload && (!queue.project || options.batch))
    throw new Error(`preload of ${queue.name} requires messages with projects, without batches`)
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
 * Declares a schedule, which sends one message per instant in the whole deployment. `when` is a number of seconds
 * (instants are its multiples since 1970; 0 disables it), a setting with such a number, or a cron expression in UTC.
 * Instants without a running worker are skipped, and instants at which `dueIf` is false; every worker evaluates it. SQL
 * conditions of schedules with the same instants are evaluated in one statement.
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

/** Work of a worker process without a queue: a loop over rows, or a task at its start. */
export type BackgroundTask = {
  name: string
  /** Kind of worker process that runs it (WORKER_KINDS). */
  concern: string
  /**
   * Starts the task; `close` stops it and resolves when it has ended. It aborts what runs after `mostMs`.
   * @param onSuspects to be called when some of its `suspects` may be due
   */
  start(
    services: Services,
    onSuspects: () => void,
  ): { close(mostMs?: number): Promise<void>; suspects?: SuspectSource } | undefined
}
