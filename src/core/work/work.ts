import { z } from 'zod'
import type { Config } from '../base/config.ts'
import { declarations } from '../base/declarations.ts'
import { type AppError, executorLost } from '../base/errors.ts'
import type { Services } from '../base/services.ts'
import type { SpanStart } from '../base/telemetry.ts'
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
  /** The span of an attempt, for work whose rows have a trace context. */
  span?: (claimed: { entity: Row; claim: WorkClaim & Columns<S> }) => SpanStart
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
export const work = <Row, S extends Shape>(declaration: WorkDeclaration<Row, S>): Work<Row, S> =>
  new WorkKind(declaration)

class WorkKind<Row, S extends Shape> implements Work<Row, S> {
  readonly name: string
  readonly queue: Queue<WorkMessage>
  readonly table: WorkTable<Row, Columns<S>>
  readonly pausable: boolean
  readonly handler: Handler
  readonly schedule: Schedule
  readonly #declaration: WorkDeclaration<Row, S>
  /** Time before which the sweep of all projects rests. */
  #restUntil = 0

  constructor(declaration: WorkDeclaration<Row, S>) {
    const { name, concern, leaseSeconds, sweep } = declaration
    this.#declaration = declaration
    this.name = name
    this.pausable = declaration.pausable === true
    this.queue = entityMailbox(name, {
      message: z.object({ entity_id: z.string(), work_id: z.string(), project_id: z.string() }),
      key: message => message.work_id,
      project: message => message.project_id,
      concern,
      // Failures of an item are counted in its row. This limit is for failures that could not be recorded.
      retry: { limit: 8, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
      leaseSeconds: typeof leaseSeconds === 'number' ? leaseSeconds : MAX_MESSAGE_LEASE_SECONDS,
    })
    this.table = workTable<Row, Columns<S>>(this.queue, {
      pausable: false,
      waitStates: [],
      keepsRow: false,
      locksEntity: true,
      ...declaration,
    })
    this.handler = handler(
      this.queue,
      {
        concurrency: declaration.concurrency,
        leaseSeconds: config => this.#leaseSeconds(config),
        boundsLosses: true,
        // The sweep sends another message for work that is retried until it succeeds.
        onExhausted: async ({ entity_id, work_id }, error, services) => {
          if (this.#retryRule(services.config).attempts < UNLIMITED.attempts)
            await this.abandon(services, { entity: entity_id, id: work_id }, error)
        },
      },
      (message, context) => this.#handle(message, context),
    )
    this.schedule = schedule(
      `${name} sweep`,
      sweep.seconds,
      sweepQueueOf(concern),
      { work: name, project_id: null },
      sweep.dueIf,
    )
  }

  wake(
    outbox: Pick<Outbox, 'send'>,
    item: WorkRef & { project_id: string },
    options?: { startAfter?: Date; priority?: number },
  ): void {
    outbox.send(this.queue, messageOf(item), options)
  }

  abandon(services: Services, ref: WorkRef, error: unknown): Promise<void> {
    return services.write(async tx => {
      const claimed = await this.table.claim(tx, ref)
      if (!claimed) return
      const entity = await this.table.remove(tx, claimed.claim)
      if (entity) await this.#declaration.fail(tx, { services, entity, claim: claimed.claim, error })
    })
  }

  async wakeOverdue(
    services: Pick<Services, 'pool' | 'queues'>,
    { limit, dryRun }: { limit: number; dryRun: boolean },
  ): Promise<number> {
    let count = 0
    for await (const page of this.#duePages(services, null, null)) {
      const items = page.slice(0, limit - count)
      if (!dryRun) await this.#sendWakeUps(services, items)
      count += items.length
      if (count === limit) break
    }
    return count
  }

  async abandonStalled(services: Services, entity: string): Promise<boolean> {
    const { stall, fail, ids } = this.#declaration
    if (!stall) return false
    const limits = stall.limits(services.config)
    // Null: the item has been settled. An active item is not locked.
    const isStalled = await this.table.isStalled(services.pool, entity, limits)
    if (!isStalled) return isStalled === null
    await services.write(async tx => {
      const item = await this.table.removeStalled(tx, entity, limits)
      if (!item) return
      const error = stall.error(item.state)
      const fields = await fail(tx, { services, entity: item.entity, claim: item.claim, error })
      services.log.warn(
        { work: this.name, ...ids(item.entity, item.claim), outcome: 'failed', decision: 'stalled', ...fields },
        'work abandoned',
      )
    })
    return true
  }

  async sweep(services: Services, stopping: AbortSignal, projectId: string | null = null): Promise<void> {
    const started = performance.now()
    if (projectId !== null) return void (await this.#sweepDue(services, stopping, projectId))
    if (started >= this.#restUntil && (await this.#sweepDue(services, stopping, null)) > 1)
      this.#restUntil = performance.now() + SWEEP_REST * (performance.now() - started)
    if (!stopping.aborted) await this.#declaration.sweep.also?.(services, stopping)
  }

  #retryRule(config: Config): RetryRule {
    const { retry } = this.#declaration
    return typeof retry === 'function' ? retry(config) : retry
  }

  #leaseSeconds(config: Config): number {
    const { leaseSeconds } = this.#declaration
    return typeof leaseSeconds === 'function' ? leaseSeconds(config) : this.queue.leaseSeconds
  }

  async #handle(message: WorkMessage, context: JobContext): Promise<void> {
    const declaration = this.#declaration
    const { name, queue, table } = this
    if (await declaration.beforeClaim?.(message, context)) return
    const { services } = context
    const claimed = await table.claim(services.pool, { entity: message.entity_id, id: message.work_id })
    if (!claimed) return void (await declaration.onUnclaimed?.(message, context))
    const { config } = services
    const retry = this.#retryRule(config)
    const isLost = claimed.claim.losses > retry.losses
    await withTriggerChain(declaration.chain?.(claimed.entity), () =>
      runAttempt(context, message, claimed, {
        name,
        queue,
        table,
        retry,
        leaseMs: this.#leaseSeconds(config) * 1000,
        ids: declaration.ids,
        lockFirst: declaration.lockFirst,
        span: declaration.span,
        run: isLost ? attempt => this.#abandonLost(attempt) : declaration.run,
        fail: declaration.fail,
        isFinal: declaration.isFinal ?? (() => false),
        deferral: declaration.deferral ?? (() => null),
      }),
    )
  }

  async #abandonLost(attempt: WorkAttempt<Row, Columns<S>>): Promise<AttemptFields> {
    const { services, claim } = attempt
    const { fail, lostError = executorLost } = this.#declaration
    const error = lostError(claim)
    const fields = await attempt.settle((tx, entity) => fail(tx, { services, entity, claim, error }))
    return { outcome: 'failed', decision: 'abandoned', losses: claim.losses, ...fields }
  }

  async #sendWakeUps(
    { queues }: Pick<Services, 'queues'>,
    items: readonly (WorkRef & { project_id: string })[],
  ): Promise<void> {
    for (let at = 0; at < items.length; at += SEND_BATCH)
      await queues.send(items.slice(at, at + SEND_BATCH).map(item => queueMessage(this.queue, messageOf(item))))
  }

  /** Yields the stalled items and those without a message of each page of overdue items. */
  async *#duePages(
    { pool }: Pick<Services, 'pool'>,
    limits: StallLimits | null,
    projectId: string | null,
  ): AsyncGenerator<readonly DueItem[]> {
    for (let after: DueCursor | null = null; ; ) {
      const page: DuePage = await this.table.listDue(pool, limits, {
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
  async #sweepDue(services: Services, stopping: AbortSignal, projectId: string | null): Promise<number> {
    const limits = this.#declaration.stall?.limits(services.config) ?? null
    let pages = 0
    for await (const items of this.#duePages(services, limits, projectId)) {
      pages++
      const { waiting = [], stalled = [] } = Object.groupBy(items, item => (item.stalled ? 'stalled' : 'waiting'))
      await this.#sendWakeUps(services, waiting)
      for (const { entity, id } of stalled) {
        if (stopping.aborted) return pages
        await isolateFailures(services, { work: this.name, work_id: id }, () => this.abandonStalled(services, entity))
      }
      if (stopping.aborted) break
    }
    return pages
  }
}

const messageOf = ({ entity, id, project_id }: WorkRef & { project_id: string }): WorkMessage => ({
  entity_id: entity,
  work_id: id,
  project_id,
})

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
