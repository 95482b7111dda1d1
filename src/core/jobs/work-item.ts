import { z } from 'zod'
import { isTransient } from '../db/database-errors.ts'
import { retryWhileUnavailable } from '../db/retry.ts'
import { type Fragment, type Queryable, sql, voidStatement } from '../db/sql.ts'
import type { Tx } from '../db/writer.ts'
import { HOLDER } from '../process/holder.ts'
import type { Services } from '../process/services.ts'
import { type JobContext, RequeueError } from './handler.ts'
import type { Queue } from './queue.ts'

/**
 * Durable attempts: work that survives its workers as rows of a table. A worker claims a row, which counts its claims up,
 * keeps it by a lease that it renews, and settles it; every write of a claim is conditional on its number, so a worker
 * that was paused past its lease writes nothing. A message only wakes a worker; a sweep finds what no message led to.
 *
 * The table has the entity's id as primary key (an entity has one attempt, a newer one takes its place), `id`, `state`
 * (`queued`, `running`, and states of its own), `due_at` (when something has to happen: the next try of a queued attempt, the
 * end of a running one's lease), `holder` (the process whose lease it is), `claims`, `losses` (claims whose worker was silent
 * until its lease was over or ended),
 * `failures`, `heartbeat_at`, and an index on `due_at`.
 */

/** An attempt and its entity. */
export type WorkItemRef = { entity: string; id: string }

/** A worker's hold on an attempt; a later claim has another number. */
export type WorkItemClaim = WorkItemRef & { claims: number; failures: number }

/** What an attempt may take, in milliseconds: silence of its worker, waiting for one. */
export type WorkItemLimits = { silenceMs: number; queueMs: number }

/** An attempt that needs a worker, or has taken too long. */
export type DueWorkItem = WorkItemRef & { project_id: string; due_at: string; stalled: boolean }

/** Another worker or a caller has the entity now: write nothing, leave. */
export class ClaimLostError extends Error {}

const interval = (ms: number): Fragment => sql.fragment`${ms} * interval '1 ms'`

export type WorkItemTable<Row> = {
  /**
   * Claims an attempt that is queued, or whose worker was silent for a lease. The caller holds the entity's lock. Null when
   * it is superseded, settled, in a state of its own, held by a live worker, or was lost too often.
   */
  claim(db: Queryable, named: WorkItemRef, leaseMs: number): Promise<(WorkItemClaim & Row) | null>
  /**
   * The cte of a first claim: `claim` of an attempt that nobody has claimed before, in the statement that takes the
   * entity's lock. There is no row of it where `locked`, the cte with the entity's id, has none.
   */
  firstClaim(named: WorkItemRef, leaseMs: number, locked: string): Fragment
  /** When the lease of a running attempt is over, while it is not. */
  heldUntil(db: Queryable, named: WorkItemRef): Promise<string | null>
  /** Renews the lease; false when the attempt is no longer this worker's. */
  renew(db: Queryable, claim: WorkItemClaim, leaseMs: number): Promise<boolean>
  /** Writes columns of an attempt that this worker holds; false when it does not. */
  set(db: Queryable, claim: WorkItemClaim, assignments: Fragment): Promise<boolean>
  /** Ends the leases of processes that are gone (`leaseHolding`). Their messages lead other workers to the attempts. */
  endLeases(db: Queryable, isGone: (holder: Fragment) => Fragment): Promise<unknown>
  /** Gives an attempt back, to be tried again after a delay; `failed` counts this try. False when it is not held. */
  requeue(db: Queryable, claim: WorkItemClaim, options: { delayMs: number; failed: boolean }): Promise<boolean>
  /** Ends an attempt that this worker holds; false when it does not. */
  end(db: Queryable, claim: WorkItemClaim): Promise<boolean>
  /** Ends an attempt that no live worker holds; false when one does, or it is superseded. */
  endIdle(db: Queryable, named: WorkItemRef): Promise<boolean>
  /** Whether the attempt of an entity has taken too long, null when there is none. Asked before any lock is taken. */
  isStalled(db: Queryable, entity: string, limits: WorkItemLimits): Promise<boolean | null>
  /** Ends the attempt of an entity, whose lock the caller holds, if it has taken too long; its id and state. */
  endStalled(db: Queryable, entity: string, limits: WorkItemLimits): Promise<{ id: string; state: string } | null>
  /**
   * A page of attempts that are due for `quietSeconds`, oldest first after `after`: by the index on `due_at`. Without limits
   * none has taken too long.
   */
  due(
    db: Queryable,
    limits: WorkItemLimits | null,
    page: { quietSeconds: number; after: Pick<DueWorkItem, 'due_at' | 'id'> | null; limit: number },
  ): Promise<readonly DueWorkItem[]>
}

/**
 * Claims an attempt under the lock of its entity. One that a live worker holds is looked at again when its lease is over, by
 * `message`: `held`. Null for one that cannot be claimed.
 */
export async function claimOrReschedule<Row, M extends object>(
  tx: Tx,
  table: WorkItemTable<Row>,
  named: WorkItemRef,
  { leaseMs }: Pick<Lease, 'leaseMs'>,
  queue: Queue<M>,
  message: M,
): Promise<(WorkItemClaim & Row) | 'held' | null> {
  const claim = await table.claim(tx, named, leaseMs)
  if (claim) return claim
  const until = await table.heldUntil(tx, named)
  if (!until) return null
  tx.send(queue, message, { startAfter: new Date(until) })
  return 'held'
}

/**
 * Declares a table of attempts.
 * @param declaration.row columns that a claim reads beside its own
 * @param declaration.owner table of the entities, which have a `project_id`
 * @param declaration.waits states of its own that end when `due_at` has passed
 * @param declaration.maxLosses workers that may be lost before the attempt is not tried again
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
  const claimed = sql.type(
    z.object({ entity: z.string(), id: z.string(), claims: z.int(), failures: z.int(), ...declaration.row }),
  )
  const time = sql.type(z.object({ due_at: z.string() }))
  const verdict = sql.type(z.object({ stalled: z.boolean() }))
  const ended = sql.type(z.object({ id: z.string(), state: z.string() }))
  const due = sql.type(
    z.object({ entity: z.string(), id: z.string(), project_id: z.string(), due_at: z.string(), stalled: z.boolean() }),
  )
  const is = (named: WorkItemRef): Fragment => sql.fragment`${entity} = ${named.entity} and id = ${named.id}`
  const held = (claim: WorkItemClaim): Fragment =>
    sql.fragment`${is(claim)} and claims = ${claim.claims} and state = 'running'`
  const stalled = ({ silenceMs, queueMs }: WorkItemLimits): Fragment => sql.fragment`(
    (state = 'running' and heartbeat_at < now() - ${interval(silenceMs)})
    or (state = 'queued' and due_at < now() - ${interval(queueMs)})
    or (state = any(${sql.array([...waits], 'text')}) and due_at < now()))`
  const happened = async (db: Queryable, change: Fragment): Promise<boolean> =>
    (await db.query(voidStatement`${change}`)).rowCount === 1
  const claiming = (leaseMs: number): Fragment => sql.fragment`
    set state = 'running', claims = claims + 1, losses = losses + (state = 'running')::integer, heartbeat_at = now(),
      due_at = now() + ${interval(leaseMs)}, holder = ${HOLDER}`
  const set: WorkItemTable<unknown>['set'] = (db, claim, assignments) =>
    happened(db, sql.fragment`update ${table} set ${assignments} where ${held(claim)}`)

  return {
    claim: (db, named, leaseMs) =>
      db.maybeOne(claimed`
        update ${table} ${claiming(leaseMs)}
        where ${is(named)} and (state = 'queued' or (state = 'running' and due_at <= now() and losses < ${maxLosses}))
        returning ${entity} as entity, id, claims, failures, ${columns}`) as never,
    firstClaim: (named, leaseMs, locked) => sql.fragment`
      update ${table} a ${claiming(leaseMs)}
      from ${sql.identifier([locked])} l
      where a.${entity} = l.id and a.id = ${named.id} and a.claims = 0 and a.state = 'queued'
      returning a.${entity} as entity, a.id, a.claims, a.failures, ${columns}`,
    heldUntil: (db, named) =>
      db.maybeOneFirst(time`
        select due_at from ${table} where ${is(named)} and state = 'running' and due_at > now()`),
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
    end: (db, claim) => happened(db, sql.fragment`delete from ${table} where ${held(claim)}`),
    endIdle: (db, named) =>
      happened(
        db,
        sql.fragment`delete from ${table}
          where ${is(named)} and (state = 'queued' or (state = 'running' and due_at <= now()))`,
      ),
    isStalled: (db, id, limits) =>
      db.maybeOneFirst(verdict`select ${stalled(limits)} as stalled from ${table} where ${entity} = ${id}`),
    endStalled: (db, id, limits) =>
      db.maybeOne(ended`delete from ${table} where ${entity} = ${id} and ${stalled(limits)} returning id, state`),
    due: (db, limits, { quietSeconds, after, limit }) =>
      db.any(due`
        select a.${entity} as entity, a.id, o.project_id, a.due_at, ${limits ? stalled(limits) : sql.fragment`false`} as stalled
        from ${table} a join ${sql.identifier([declaration.owner])} o on o.id = a.${entity}
        where a.due_at < now() - ${quietSeconds} * interval '1 s'
          ${after ? sql.fragment`and (a.due_at, a.id) > (${after.due_at}::timestamptz, ${after.id})` : sql.fragment``}
        order by a.due_at, a.id limit ${limit}`),
  }
}

/** How long a lease is, and how often it is renewed: often enough that its worker never seems to have stalled. */
export type Lease = { leaseMs: number; beatMs: number }

/** A lease of so many milliseconds: of the renewals that fall into it three may fail. */
export const leaseTimings = (leaseMs: number): Lease => ({ leaseMs, beatMs: leaseMs / 4 })

/** A claim while it is worked on: its lease is renewed, and `signal` is aborted once it is lost. */
export class ActiveClaim<C extends WorkItemClaim> {
  readonly claim: C
  readonly signal: AbortSignal
  readonly #services: Services
  readonly #attempts: WorkItemTable<unknown>
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
    this.#attempts = options.attempts
    this.#lease = options.lease
    this.#lock = options.lock
    this.signal = AbortSignal.any([options.outer, this.#lost.signal])
    this.#timer = setInterval(() => void this.#beat(), options.lease.beatMs)
  }

  async #beat(): Promise<void> {
    try {
      if (!(await this.#attempts.renew(this.#services.pool, this.claim, this.#lease.leaseMs))) this.#lose()
    } catch (error) {
      const { entity, id } = this.claim
      this.#services.log.warn({ err: error, entity, attempt_id: id }, 'lease of an attempt not renewed')
    }
  }

  #lose(): void {
    clearInterval(this.#timer)
    this.#lost.abort(new ClaimLostError())
  }

  /**
   * Runs a transaction that is fenced by the claim, again while the database is unavailable: a commit whose answer was lost
   * ends the claim, or is repeated without effect. Raises Superseded once the claim is lost.
   */
  write<T>(work: (tx: Tx) => Promise<T>): Promise<T> {
    this.signal.throwIfAborted()
    return retryWhileUnavailable(() => this.#services.write(work), { signal: this.signal })
  }

  /** Takes the entity's lock, then makes sure of the claim and renews its lease. Raises Superseded. */
  async guard(tx: Tx): Promise<void> {
    if (!(await this.#lock(tx)) || !(await this.#attempts.renew(tx, this.claim, this.#lease.leaseMs)))
      throw new ClaimLostError()
  }

  end(): void {
    clearInterval(this.#timer)
  }
}

/** How one try of an attempt ended, for its log line. */
export type AttemptOutcome = { outcome: string } & Record<string, unknown>

/**
 * Works on a claim to the end of one try, and leaves its one log line. What `work` throws becomes another try or the end
 * by `fail`. The attempt is requeued uncounted by a worker that stops, which throws HandBack, and after an error of the
 * database that is to be tried again, which is thrown on for the message.
 */
export async function processClaim<C extends WorkItemClaim>(
  { services, signal, stopping }: Pick<JobContext, 'services' | 'signal' | 'stopping'>,
  options: {
    /** What the log line calls it, with its ids. */
    what: string
    ids: Record<string, string>
    attempts: WorkItemTable<unknown>
    claim: C
    lease: Lease
    /** Takes the entity's lock; falsy when it is gone. */
    lock: (tx: Tx) => Promise<unknown>
    work: (hold: ActiveClaim<C>) => Promise<AttemptOutcome>
    fail: (error: unknown, claim: C) => Promise<AttemptOutcome>
  },
): Promise<void> {
  const { what, ids, attempts, claim, work, fail } = options
  const started = performance.now()
  const hold = new ActiveClaim(services, { ...options, outer: signal })
  const report = (outcome: AttemptOutcome): void =>
    services.log.info(
      { ...ids, attempt: claim.claims, duration_ms: Math.round(performance.now() - started), ...outcome },
      what,
    )
  const requeue = async (): Promise<void> => {
    await retryWhileUnavailable(() => attempts.requeue(services.pool, claim, { delayMs: 0, failed: false }), { signal })
    report({ outcome: 'handed_back' })
  }
  try {
    report(await work(hold))
  } catch (error) {
    if (signal.aborted && stopping.aborted) {
      await requeue()
      throw new RequeueError('the worker stops')
    }
    if (error instanceof ClaimLostError || hold.signal.aborted) return report({ outcome: 'superseded' })
    if (isTransient(error)) {
      await requeue()
      throw error
    }
    try {
      report(await retryWhileUnavailable(() => fail(error, claim), { signal: hold.signal }))
    } catch (failure) {
      if (!(failure instanceof ClaimLostError)) throw failure
      report({ outcome: 'superseded' })
    }
  } finally {
    hold.end()
  }
}

const SWEEP_PAGE = 500

/**
 * The floor under the wake-ups: `wake` gets the attempts that are due and whose message or worker was lost, page by page;
 * with `giveUp` one that has taken too long is ended by `giveUp.end`.
 */
export async function sweepWorkItems(
  db: Queryable,
  options: {
    attempts: WorkItemTable<unknown>
    /** An attempt this late has lost its message. */
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
    const found: readonly DueWorkItem[] = await attempts.due(db, giveUp?.limits ?? null, page)
    const waiting = found.filter(({ stalled }) => !stalled)
    if (waiting.length > 0) await wake(waiting)
    for (const { entity } of found.filter(({ stalled }) => stalled)) {
      if (stopping.aborted) return
      await giveUp?.end(entity)
    }
    if (found.length < SWEEP_PAGE || stopping.aborted) return
    after = found[found.length - 1]
  }
}
