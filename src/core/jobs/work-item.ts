import { z } from 'zod'
import { isTransient } from '../db/database-errors.ts'
import { retryWhileUnavailable } from '../db/retry.ts'
import { type Fragment, type Queryable, sql, voidStatement } from '../db/sql.ts'
import type { Tx } from '../db/writer.ts'
import { HOLDER } from '../process/holder.ts'
import type { Services } from '../process/services.ts'
import { ClaimLostError, type JobContext, RequeueError } from './handler.ts'
import type { Queue } from './queue.ts'

/**
 * Durable work outside the message queue: one row per work item, which survives its workers. A worker claims the row,
 * which increments the number of claims, renews the lease while it works, and settles the item. Every write is fenced
 * by the claim number, so a worker that was suspended past its lease writes nothing. Messages are only wake-ups; a
 * sweep is the fallback for lost ones.
 *
 * The primary key of the table is the ID of the entity: an entity has one work item, and a newer one replaces it. The
 * other columns are `id`, `state` (`queued`, `running` and the states of the module), `due_at` (next attempt of a
 * queued item, end of the lease of a running one), `holder` (process that holds the lease), `claims`, `losses` (claims
 * whose lease expired or was ended), `failures` and `heartbeat_at`. `due_at` is indexed.
 */

/** A work item and its entity. */
export type WorkItemRef = { entity: string; id: string }

/** A worker's claim of a work item, numbered by `claims`. */
export type WorkItemClaim = WorkItemRef & { claims: number; failures: number }

/** Time limits in milliseconds: since the last heartbeat of a running item, and for a queued item since it was due. */
export type WorkItemLimits = { silenceMs: number; queueMs: number }

/** A work item that is due, `stalled` if it exceeds its limits. */
export type DueWorkItem = WorkItemRef & { project_id: string; due_at: string; stalled: boolean }

const interval = (ms: number): Fragment => sql.fragment`${ms} * interval '1 ms'`

export type WorkItemTable<Row> = {
  /**
   * Claims an item that is queued or whose lease has expired. The caller holds the lock of the entity. Returns null if
   * the item was replaced, settled, is in another state, is claimed by a live worker, or has reached `maxLosses`.
   */
  claim(db: Queryable, ref: WorkItemRef, leaseMs: number): Promise<(WorkItemClaim & Row) | null>
  /**
   * Builds the update of a first claim, as a CTE of the statement that locks the entity. It claims nothing unless
   * `locked`, a CTE, returns the ID of the entity.
   */
  firstClaim(ref: WorkItemRef, leaseMs: number, locked: string): Fragment
  /** Returns the end of the current lease of a running item, null without one. */
  heldUntil(db: Queryable, ref: WorkItemRef): Promise<string | null>
  /** Renews the lease. Returns false if the claim is lost. */
  renew(db: Queryable, claim: WorkItemClaim, leaseMs: number): Promise<boolean>
  /** Updates columns of the claimed item. Returns false if the claim is lost. */
  set(db: Queryable, claim: WorkItemClaim, assignments: Fragment): Promise<boolean>
  /**
   * Ends the leases of lost processes (`leaseHolding`). The unfinished messages of those processes wake other workers.
   */
  endLeases(db: Queryable, isGone: (holder: Fragment) => Fragment): Promise<unknown>
  /** Queues the item again after a delay; `failed` counts a failure. Returns false if the claim is lost. */
  requeue(db: Queryable, claim: WorkItemClaim, options: { delayMs: number; failed: boolean }): Promise<boolean>
  /** Deletes the claimed item. Returns false if the claim is lost. */
  end(db: Queryable, claim: WorkItemClaim): Promise<boolean>
  /** Deletes an item without a current lease. Returns false if a live worker has claimed it or it was replaced. */
  endIdle(db: Queryable, ref: WorkItemRef): Promise<boolean>
  /** Whether the item of an entity exceeds its limits, null without an item. Called before any lock is taken. */
  isStalled(db: Queryable, entity: string, limits: WorkItemLimits): Promise<boolean | null>
  /** Deletes the item of an entity if it exceeds its limits and returns it. The caller holds the lock of the entity. */
  endStalled(db: Queryable, entity: string, limits: WorkItemLimits): Promise<{ id: string; state: string } | null>
  /**
   * Lists a page of items that have been due for `quietSeconds`, oldest first, after `after`; the index on `due_at`
   * serves it. Without limits no item is stalled.
   */
  due(
    db: Queryable,
    limits: WorkItemLimits | null,
    page: { quietSeconds: number; after: Pick<DueWorkItem, 'due_at' | 'id'> | null; limit: number },
  ): Promise<readonly DueWorkItem[]>
}

/**
 * Claims a work item under the lock of its entity. If a live worker has claimed it, sends `message` for the end of that
 * lease and returns `held`. Returns null if the item cannot be claimed.
 */
export async function claimOrReschedule<Row, M extends object>(
  tx: Tx,
  table: WorkItemTable<Row>,
  ref: WorkItemRef,
  { leaseMs }: Pick<Lease, 'leaseMs'>,
  queue: Queue<M>,
  message: M,
): Promise<(WorkItemClaim & Row) | 'held' | null> {
  const claim = await table.claim(tx, ref, leaseMs)
  if (claim) return claim
  const until = await table.heldUntil(tx, ref)
  if (!until) return null
  tx.send(queue, message, { startAfter: new Date(until) })
  return 'held'
}

/**
 * Declares a table of work items.
 * @param declaration.row additional columns that a claim reads
 * @param declaration.owner table of the entities, with a `project_id`
 * @param declaration.waits module-specific states that expire at `due_at`
 * @param declaration.maxLosses lost claims after which the item is not claimed again, default 2
 */
export function workItemTable<S extends z.ZodRawShape>(declaration: {
  table: string
  entity: string
  owner: string
  row: S
  waits?: readonly string[]
  maxLosses?: number
}): WorkItemTable<z.output<z.ZodObject<S>>> {
  const { waits = [], maxLosses = 2 } = declaration
  const table = sql.identifier([declaration.table])
  const entity = sql.identifier([declaration.entity])
  const columns = sql.join(
    Object.keys(declaration.row).map(name => sql.identifier([name])),
    sql.fragment`, `,
  )
  const claimRow = sql.type(
    z.object({ entity: z.string(), id: z.string(), claims: z.int(), failures: z.int(), ...declaration.row }),
  )
  const dueAtRow = sql.type(z.object({ due_at: z.string() }))
  const stalledRow = sql.type(z.object({ stalled: z.boolean() }))
  const endedRow = sql.type(z.object({ id: z.string(), state: z.string() }))
  const dueRow = sql.type(
    z.object({ entity: z.string(), id: z.string(), project_id: z.string(), due_at: z.string(), stalled: z.boolean() }),
  )
  const matches = (ref: WorkItemRef): Fragment => sql.fragment`${entity} = ${ref.entity} and id = ${ref.id}`
  const fence = (claim: WorkItemClaim): Fragment =>
    sql.fragment`${matches(claim)} and claims = ${claim.claims} and state = 'running'`
  const isStalled = ({ silenceMs, queueMs }: WorkItemLimits): Fragment => sql.fragment`(
    (state = 'running' and heartbeat_at < now() - ${interval(silenceMs)})
    or (state = 'queued' and due_at < now() - ${interval(queueMs)})
    or (state = any(${sql.array([...waits], 'text')}) and due_at < now()))`
  const changesRow = async (db: Queryable, change: Fragment): Promise<boolean> =>
    (await db.query(voidStatement`${change}`)).rowCount === 1
  const claimAssignments = (leaseMs: number): Fragment => sql.fragment`
    set state = 'running', claims = claims + 1, losses = losses + (state = 'running')::integer, heartbeat_at = now(),
      due_at = now() + ${interval(leaseMs)}, holder = ${HOLDER}`
  const set: WorkItemTable<unknown>['set'] = (db, claim, assignments) =>
    changesRow(db, sql.fragment`update ${table} set ${assignments} where ${fence(claim)}`)

  return {
    claim: (db, ref, leaseMs) =>
      db.maybeOne(claimRow`
        update ${table} ${claimAssignments(leaseMs)}
        where ${matches(ref)} and (state = 'queued' or (state = 'running' and due_at <= now() and losses < ${maxLosses}))
        returning ${entity} as entity, id, claims, failures, ${columns}`) as never,
    firstClaim: (ref, leaseMs, locked) => sql.fragment`
      update ${table} a ${claimAssignments(leaseMs)}
      from ${sql.identifier([locked])} l
      where a.${entity} = l.id and a.id = ${ref.id} and a.claims = 0 and a.state = 'queued'
      returning a.${entity} as entity, a.id, a.claims, a.failures, ${columns}`,
    heldUntil: (db, ref) =>
      db.maybeOneFirst(dueAtRow`
        select due_at from ${table} where ${matches(ref)} and state = 'running' and due_at > now()`),
    renew: (db, claim, leaseMs) =>
      set(db, claim, sql.fragment`heartbeat_at = now(), due_at = now() + ${interval(leaseMs)}`),
    set,
    endLeases: (db, isGone) =>
      db.query(voidStatement`
        update ${table} set due_at = now() where due_at > now() and state = 'running' and ${isGone(sql.fragment`holder`)}`),
    requeue: (db, claim, { delayMs, failed }) =>
      set(
        db,
        claim,
        sql.fragment`state = 'queued', due_at = now() + ${interval(delayMs)}, failures = failures + ${failed ? 1 : 0}`,
      ),
    end: (db, claim) => changesRow(db, sql.fragment`delete from ${table} where ${fence(claim)}`),
    endIdle: (db, ref) =>
      changesRow(
        db,
        sql.fragment`delete from ${table}
          where ${matches(ref)} and (state = 'queued' or (state = 'running' and due_at <= now()))`,
      ),
    isStalled: (db, id, limits) =>
      db.maybeOneFirst(stalledRow`select ${isStalled(limits)} as stalled from ${table} where ${entity} = ${id}`),
    endStalled: (db, id, limits) =>
      db.maybeOne(endedRow`delete from ${table} where ${entity} = ${id} and ${isStalled(limits)} returning id, state`),
    due: (db, limits, { quietSeconds, after, limit }) =>
      db.any(dueRow`
        select a.${entity} as entity, a.id, o.project_id, a.due_at, ${limits ? isStalled(limits) : sql.fragment`false`} as stalled
        from ${table} a join ${sql.identifier([declaration.owner])} o on o.id = a.${entity}
        where a.due_at < now() - ${quietSeconds} * interval '1 s'
          ${after ? sql.fragment`and (a.due_at, a.id) > (${after.due_at}::timestamptz, ${after.id})` : sql.fragment``}
        order by a.due_at, a.id limit ${limit}`),
  }
}

/** Length of a lease and interval of its renewals. */
export type Lease = { leaseMs: number; beatMs: number }

/** Returns the timings of a lease, of which three consecutive renewals may fail. */
export const leaseTimings = (leaseMs: number): Lease => ({ leaseMs, beatMs: leaseMs / 4 })

/** A claim in progress: renews its lease, and aborts `signal` once the claim is lost. */
export class ActiveClaim<C extends WorkItemClaim> {
  readonly claim: C
  readonly signal: AbortSignal
  readonly #services: Services
  readonly #table: WorkItemTable<unknown>
  readonly #lease: Lease
  readonly #lock: (tx: Tx) => Promise<unknown>
  readonly #lost = new AbortController()
  readonly #timer: NodeJS.Timeout

  constructor(
    services: Services,
    options: {
      attempts: WorkItemTable<unknown>
      claim: C
      lease: Lease
      outer: AbortSignal
      lock: (tx: Tx) => Promise<unknown>
    },
  ) {
    this.claim = options.claim
    this.#services = services
    this.#table = options.attempts
    this.#lease = options.lease
    this.#lock = options.lock
    this.signal = AbortSignal.any([options.outer, this.#lost.signal])
    this.#timer = setInterval(() => void this.#renew(), options.lease.beatMs)
  }

  async #renew(): Promise<void> {
    try {
      if (!(await this.#table.renew(this.#services.pool, this.claim, this.#lease.leaseMs))) this.#abort()
    } catch (error) {
      const { entity, id } = this.claim
      this.#services.log.warn({ err: error, entity, attempt_id: id }, 'lease renewal failed')
    }
  }

  #abort(): void {
    clearInterval(this.#timer)
    this.#lost.abort(new ClaimLostError())
  }

  /**
   * Runs a transaction fenced by the claim and repeats it while the database is unavailable. If the response to a
   * commit is lost, the repetition has no effect or finds the claim lost.
   * @throws ClaimLostError once the claim is lost
   */
  write<T>(work: (tx: Tx) => Promise<T>): Promise<T> {
    this.signal.throwIfAborted()
    return retryWhileUnavailable(() => this.#services.write(work), { signal: this.signal })
  }

  /**
   * Locks the entity, then verifies the claim and renews its lease.
   * @throws ClaimLostError if the entity is gone or the claim is lost
   */
  async guard(tx: Tx): Promise<void> {
    if (!(await this.#lock(tx)) || !(await this.#table.renew(tx, this.claim, this.#lease.leaseMs)))
      throw new ClaimLostError()
  }

  end(): void {
    clearInterval(this.#timer)
  }
}

/** Outcome of an attempt, with further fields of its log line. */
export type AttemptOutcome = { outcome: string } & Record<string, unknown>

/**
 * Runs one attempt under a claim and writes its log line. An error of `work` is passed to `fail`, which retries or
 * settles the item. The item is requeued without counting the attempt when the worker stops (throws RequeueError), and
 * after a transient database error, which is rethrown for the message.
 */
export async function processClaim<C extends WorkItemClaim>(
  { services, signal, stopping }: Pick<JobContext, 'services' | 'signal' | 'stopping'>,
  options: {
    /** Text of the log line; `ids` are its fields. */
    what: string
    ids: Record<string, string>
    attempts: WorkItemTable<unknown>
    claim: C
    lease: Lease
    /** Locks the entity; returns a falsy value if it is gone. */
    lock: (tx: Tx) => Promise<unknown>
    work: (active: ActiveClaim<C>) => Promise<AttemptOutcome>
    fail: (error: unknown, claim: C) => Promise<AttemptOutcome>
  },
): Promise<void> {
  const { what, ids, attempts, claim, work, fail } = options
  const started = performance.now()
  const active = new ActiveClaim(services, { ...options, outer: signal })
  const report = (outcome: AttemptOutcome): void =>
    services.log.info(
      { ...ids, attempt: claim.claims, duration_ms: Math.round(performance.now() - started), ...outcome },
      what,
    )
  const requeue = async (): Promise<void> => {
    await retryWhileUnavailable(() => attempts.requeue(services.pool, claim, { delayMs: 0, failed: false }), { signal })
    report({ outcome: 'requeued' })
  }
  try {
    report(await work(active))
  } catch (error) {
    if (signal.aborted && stopping.aborted) {
      await requeue()
      throw new RequeueError('worker stopping')
    }
    if (error instanceof ClaimLostError || active.signal.aborted) return report({ outcome: 'claim_lost' })
    if (isTransient(error)) {
      await requeue()
      throw error
    }
    try {
      report(await retryWhileUnavailable(() => fail(error, claim), { signal: active.signal }))
    } catch (failure) {
      if (!(failure instanceof ClaimLostError)) throw failure
      report({ outcome: 'claim_lost' })
    }
  } finally {
    active.end()
  }
}

const SWEEP_PAGE = 500

/**
 * Sweeps for due items whose message or worker was lost: passes them to `wake`, page by page. With `giveUp`, an item
 * that exceeds its limits is passed to `giveUp.end` instead.
 */
export async function sweepWorkItems(
  db: Queryable,
  options: {
    attempts: WorkItemTable<unknown>
    /** Age of `due_at` at which the message of an item counts as lost. */
    quietSeconds: number
    stopping: AbortSignal
    wake: (due: readonly DueWorkItem[]) => Promise<unknown>
    giveUp?: { limits: WorkItemLimits; end: (entity: string) => Promise<unknown> }
  },
): Promise<void> {
  const { attempts, quietSeconds, stopping, wake, giveUp } = options
  let after: DueWorkItem | null = null
  for (;;) {
    const page = { quietSeconds, after, limit: SWEEP_PAGE }
    const items: readonly DueWorkItem[] = await attempts.due(db, giveUp?.limits ?? null, page)
    const waiting = items.filter(({ stalled }) => !stalled)
    if (waiting.length > 0) await wake(waiting)
    for (const { entity } of items.filter(({ stalled }) => stalled)) {
      if (stopping.aborted) return
      await giveUp?.end(entity)
    }
    if (items.length < SWEEP_PAGE || stopping.aborted) return
    after = items[items.length - 1]
  }
}
