import { z } from 'zod'
import type { Config } from '../base/config.ts'
import { declarations } from '../base/declarations.ts'
import { type AppError, executorLost } from '../base/errors.ts'
import type { Services } from '../base/services.ts'
import type { Fragment } from '../db/sql.ts'
import { withTriggerChain } from '../db/trigger-chain.ts'
import { entityMailbox, type Queue, queueMessage, workQueue } from '../queues/queue.ts'
import type { Outbox, Tx } from '../writes/writer.ts'
import { type AttemptFields, type FailedWork, runAttempt, type WorkAttempt, type WorkMessage } from './attempt.ts'
import { type Handler, handler, type JobContext, type Schedule, schedule } from './handler.ts'
import { type RetryRule, UNLIMITED } from './retry.ts'
import {
  type DueCursor,
  type DueItem,
  type DuePage,
  type StallLimits,
  type WorkClaim,
  type WorkEntity,
  type WorkRef,
  type WorkTable,
  workTable,
} from './store.ts'
import { isolateFailures } from './sweeps.ts'

/**
 * Durable work: table rows that survive a lost worker. The message of an item is its lease: the deployment has at most one
 * message per item, and a lost worker loses the message. The row has the fence: each claim increments `claims`, and all
 * writes are conditional on the number, so a worker that was suspended past its lease writes nothing. A sweep wakes items
 * whose message was lost.
 */

type Shape = z.ZodRawShape
type Columns<S extends Shape> = z.output<z.ZodObject<S>>

export type WorkDeclaration<Row, S extends Shape> = {
  /** Name of the queue and of the work in logs, as `area.verb`. */
  name: string
  concern: string
  /** Owner of the item. An entity has at most one item. */
  entity: WorkEntity<Row>
  table: string
  entityColumn: string
  /** Columns of the item that a claim returns. */
  columns: S
  /** IDs for log lines. */
  ids: (entity: Row, claim: WorkClaim) => Record<string, unknown>
  leaseSeconds?: number | ((config: Config) => number)
  concurrency?: number | ((config: Config) => number)
  retry: RetryRule | ((config: Config) => RetryRule)
  /** Whether a retry would fail in the same way. By default no failure is final. */
  isFinal?: (error: unknown) => boolean
  /** Delay in milliseconds for an error that defers the work without counting as a failure; null for a failure. */
  deferral?: (error: unknown, claim: WorkClaim & Columns<S>) => number | null
  /** Assignments to the entity (alias `t`) by a claim. */
  begin?: Fragment
  /** Whether queued items wait while their project is paused. */
  pausable?: boolean
  /** Wait states of the kind; an item in one is stalled when `due_at` has passed. */
  waitStates?: readonly string[]
  /** Whether the row of a settled item is kept, in a state that `run` and `fail` write. */
  keepsRow?: boolean
  /** Acquires locks that precede the lock of the entity in the lock order. */
  lockFirst?: (tx: Tx, entity: Row) => Promise<unknown>
  /** Whether writes of an attempt lock the entity. Default true. */
  locksEntity?: boolean
  /** Limits after which an item is stalled, and the error of the abandoned item by its state. */
  stall?: { limits: (config: Config) => StallLimits; error: (state: string) => unknown }
  sweep: {
    seconds: number | ((config: Config) => number)
    dueIf?: Fragment
    also?: (services: Services, stopping: AbortSignal) => Promise<unknown>
  }
  /** Trigger chain of the work, if the entity stores it. */
  chain?: (entity: Row) => readonly string[] | undefined
  /** Runs before the claim; true skips it. */
  beforeClaim?: (message: WorkMessage, context: JobContext) => Promise<boolean>
  /** Handles a message whose item cannot be claimed. */
  onUnclaimed?: (message: WorkMessage, context: JobContext) => Promise<unknown>
  /** Runs one attempt, which must call `settle`, `suspend` or `reschedule`, or throw. */
  run: (attempt: WorkAttempt<Row, Columns<S>>) => Promise<AttemptFields>
  /** Records that the item was abandoned, in the transaction that settles it. Returns log fields. */
  fail: (tx: Tx, failed: FailedWork<Row, Columns<S>>) => Promise<Record<string, unknown> | undefined>
  /** Error of an item that lost too many workers. Default EXECUTOR_LOST. */
  lostError?: (claim: WorkClaim) => AppError
}

export type Work<Row = any, S extends Shape = any> = {
  name: string
  queue: Queue<WorkMessage>
  handler: Handler
  schedule: Schedule
  table: WorkTable<Row, Columns<S>>
  pausable: boolean
  /** Sends the wake-up of an item. */
  wake(
    outbox: Pick<Outbox, 'send'>,
    item: WorkRef & { project_id: string },
    options?: { startAfter?: Date; priority?: number },
  ): void
  /** Abandons an item that can be claimed. */
  abandon(services: Services, ref: WorkRef, error: unknown): Promise<void>
  /** Wakes up to `limit` overdue items without a message, or only counts them. Returns their number. */
  wakeOverdue(services: Pick<Services, 'pool' | 'queues'>, options: { limit: number; dryRun: boolean }): Promise<number>
  /** Abandons the item of an entity if it is stalled. False if the item is active. */
  abandonStalled(services: Services, entity: string): Promise<boolean>
  /** Wakes overdue items without a message and abandons stalled items, of all projects or of one. */
  sweep(services: Services, stopping: AbortSignal, projectId?: string | null): Promise<void>
}

/** All kinds of durable work. */
export const works = declarations<Work>('work', ({ name }) => name)

/** Lease of a message whose kind declares none, and the bound of kinds that derive theirs from a longer setting. */
export const MAX_MESSAGE_LEASE_SECONDS = 60

/** An item that is overdue by this time has lost its message. */
const LATE_SECONDS = 5

/** Overdue items that one statement of a sweep examines. */
const SWEEP_PAGE = 10_000

/** A sweep of several pages is followed by a rest of this many times its duration, so that a backlog costs a constant share. */
const SWEEP_REST = 20

const SEND_BATCH = 500

/** Declares a kind of durable work. Modules list it in `work`. */
export function work<Row, S extends Shape>(declaration: WorkDeclaration<Row, S>): Work<Row, S> {
  const { name, concern, sweep: sweeping, beforeClaim, chain, stall } = declaration
  const queue: Queue<WorkMessage> = entityMailbox(name, {
    message: z.object({ entity_id: z.string(), work_id: z.string(), project_id: z.string() }),
    key: message => message.work_id,
    project: message => message.project_id,
    concern,
    // Failures of an item are counted in its row. This limit is for failures that could not be recorded.
    retry: { limit: 8, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
    leaseSeconds: typeof declaration.leaseSeconds === 'number' ? declaration.leaseSeconds : MAX_MESSAGE_LEASE_SECONDS,
  })
  const table = workTable<Row, Columns<S>>(queue, {
    pausable: false,
    waitStates: [],
    keepsRow: false,
    locksEntity: true,
    ...declaration,
  })
  const retryOf = (config: Config): RetryRule =>
    typeof declaration.retry === 'function' ? declaration.retry(config) : declaration.retry
  const leaseSecondsOf = (config: Config): number =>
    typeof declaration.leaseSeconds === 'function' ? declaration.leaseSeconds(config) : queue.leaseSeconds
  const { fail } = declaration
  const lostError = declaration.lostError ?? executorLost

  const handle = async (message: WorkMessage, context: JobContext): Promise<void> => {
    if (await beforeClaim?.(message, context)) return
    const { services } = context
    const claimed = await table.claim(services.pool, { entity: message.entity_id, id: message.work_id })
    if (!claimed) return void (await declaration.onUnclaimed?.(message, context))
    const { config } = services
    const retry = retryOf(config)
    const isLost = claimed.claim.losses > retry.losses
    await withTriggerChain(chain?.(claimed.entity), () =>
      runAttempt(context, message, claimed, {
        name,
        queue,
        table,
        retry,
        leaseMs: leaseSecondsOf(config) * 1000,
        ids: declaration.ids,
        lockFirst: declaration.lockFirst,
        run: isLost ? attempt => abandonLost(attempt, lostError(claimed.claim)) : declaration.run,
        fail,
        isFinal: declaration.isFinal ?? (() => false),
        deferral: declaration.deferral ?? (() => null),
      }),
    )
  }
  const abandonLost = async (attempt: WorkAttempt<Row, Columns<S>>, error: AppError): Promise<AttemptFields> => {
    const { services, claim } = attempt
    const fields = await attempt.settle((tx, entity) => fail(tx, { services, entity, claim, error }))
    return { outcome: 'failed', decision: 'abandoned', losses: claim.losses, ...fields }
  }

  const abandonStalled = async (services: Services, entity: string): Promise<boolean> => {
    if (!stall) return false
    const limits = stall.limits(services.config)
    // Null: the item has been settled. An active item is not locked.
    const isStalled = await table.isStalled(services.pool, entity, limits)
    if (!isStalled) return isStalled === null
    await services.write(async tx => {
      const item = await table.removeStalled(tx, entity, limits)
      if (!item) return
      const error = stall.error(item.state)
      const fields = await fail(tx, { services, entity: item.entity, claim: item.claim, error })
      services.log.warn(
        { work: name, ...declaration.ids(item.entity, item.claim), outcome: 'failed', decision: 'stalled', ...fields },
        'work abandoned',
      )
    })
    return true
  }

  const messageOf = ({ entity, id, project_id }: WorkRef & { project_id: string }): WorkMessage => ({
    entity_id: entity,
    work_id: id,
    project_id,
  })
  const sendWakeUps = async (
    { queues }: Pick<Services, 'queues'>,
    items: readonly (WorkRef & { project_id: string })[],
  ): Promise<void> => {
    for (let at = 0; at < items.length; at += SEND_BATCH)
      await queues.send(items.slice(at, at + SEND_BATCH).map(item => queueMessage(queue, messageOf(item))))
  }

  let restUntil = 0
  /** Yields the stalled items and those without a message of each page of overdue items. */
  async function* duePages(
    { pool }: Pick<Services, 'pool'>,
    limits: StallLimits | null,
    projectId: string | null,
  ): AsyncGenerator<readonly DueItem[]> {
    for (let after: DueCursor | null = null; ; ) {
      const page: DuePage = await table.listDue(pool, limits, {
        lateSeconds: LATE_SECONDS,
        projectId,
        after,
        scan: SWEEP_PAGE,
      })
      yield page.items
      if (page.next === null) return
      after = page.next
    }
  }

  /** Wakes and abandons overdue items. Returns the number of pages read. */
  async function sweepDue(services: Services, stopping: AbortSignal, projectId: string | null): Promise<number> {
    let pages = 0
    for await (const items of duePages(services, stall?.limits(services.config) ?? null, projectId)) {
      pages++
      const { waiting = [], stalled = [] } = Object.groupBy(items, item => (item.stalled ? 'stalled' : 'waiting'))
      await sendWakeUps(services, waiting)
      for (const { entity, id } of stalled) {
        if (stopping.aborted) return pages
        await isolateFailures(services, { work: name, work_id: id }, () => abandonStalled(services, entity))
      }
      if (stopping.aborted) break
    }
    return pages
  }

  const declared: Work<Row, S> = {
    name,
    queue,
    table,
    pausable: declaration.pausable === true,
    wake: (outbox, item, options) => outbox.send(queue, messageOf(item), options),
    abandon: (services, ref, error) =>
      services.write(async tx => {
        const claimed = await table.claim(tx, ref)
        if (!claimed) return
        const entity = await table.remove(tx, claimed.claim)
        if (entity) await fail(tx, { services, entity, claim: claimed.claim, error })
      }),
    async wakeOverdue(services, { limit, dryRun }) {
      let count = 0
      for await (const page of duePages(services, null, null)) {
        const items = page.slice(0, limit - count)
        if (!dryRun) await sendWakeUps(services, items)
        count += items.length
        if (count === limit) break
      }
      return count
    },
    abandonStalled,
    async sweep(services, stopping, projectId = null) {
      const started = performance.now()
      if (projectId !== null) return void (await sweepDue(services, stopping, projectId))
      if (started >= restUntil && (await sweepDue(services, stopping, null)) > 1)
        restUntil = performance.now() + SWEEP_REST * (performance.now() - started)
      if (!stopping.aborted) await sweeping.also?.(services, stopping)
    },
    handler: handler(
      queue,
      {
        concurrency: declaration.concurrency,
        leaseSeconds: leaseSecondsOf,
        boundsLosses: true,
        // The sweep sends another message for work that is retried until it succeeds.
        onExhausted: async ({ entity_id, work_id }, error, services) => {
          if (retryOf(services.config).attempts < UNLIMITED.attempts)
            await declared.abandon(services, { entity: entity_id, id: work_id }, error)
        },
      },
      handle,
    ),
    schedule: schedule(
      `${name} sweep`,
      sweeping.seconds,
      sweepQueueOf(concern),
      { work: name, project_id: null },
      sweeping.dueIf,
    ),
  }
  return declared
}

const SweepMessage = z.object({ work: z.string(), project_id: z.string().nullable().default(null) })

const sweepQueues = new Map<string, Queue<z.output<typeof SweepMessage>>>()

/** Returns the queue for the sweeps of a concern, so that workers of the concern sweep its work. */
function sweepQueueOf(concern: string): Queue<z.output<typeof SweepMessage>> {
  const existing = sweepQueues.get(concern)
  if (existing) return existing
  const queue = workQueue(`work.sweep_${concern}`, {
    message: SweepMessage,
    concern,
    retry: { limit: 0 },
    leaseSeconds: MAX_MESSAGE_LEASE_SECONDS,
  })
  sweepQueues.set(concern, queue)
  return queue
}

/** Sends sweeps of the pausable kinds, in the transaction that resumes a project: they wake its overdue items. */
export function wakeResumedWork(outbox: Pick<Outbox, 'send'>, project_id: string): void {
  for (const { name, queue, pausable } of works.all())
    if (pausable) outbox.send(sweepQueueOf(queue.concern), { work: name, project_id })
}

/** Returns the handlers of kinds of work, and one sweep handler per concern. */
export const workHandlers = (kinds: readonly Work[]): Handler[] => [
  ...kinds.map(({ handler }) => handler),
  ...[...new Set(kinds.map(({ queue }) => queue.concern))].map(concern =>
    handler(sweepQueueOf(concern), { concurrency: 1 }, async ({ work: name, project_id }, { services, stopping }) => {
      // A message from another release may name work that this release does not have.
      await works.find(name)?.sweep(services, stopping, project_id)
    }),
  ),
]
