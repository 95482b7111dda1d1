import type { DatabasePoolConnection } from 'slonik'
import type { Config } from '../base/config.ts'
import { AppError } from '../base/errors.ts'
import { settledWithin } from '../base/event-loop.ts'
import type { Logger } from '../base/log.ts'
import { exclusiveLoop } from '../base/loop.ts'
import { type PoolUse, replicaLag, replicaReads, replicaUp } from '../base/metrics.ts'
import { pollUntil } from '../base/poll.ts'
import { coalescedReads } from './coalesced-reads.ts'
import { DatabaseUnresponsiveError, databaseErrorKind } from './database-errors.ts'
import { withParameters } from './database-url.ts'
import { DatabaseClient } from './pg-client.ts'
import { inTransaction, onSeparateConnection, openPool, type Pool, type PoolOptions, poolUse } from './pool.ts'
import { STATEMENT_METHODS } from './prepared-statements.ts'
import { type PrimaryFacts, ReplicaFacts, readPrimaryFacts, replicaFacts, replicaProblem } from './replica-facts.ts'
import { type ServerWatchdog, watchServer } from './server-watchdog.ts'
import type { Queryable } from './sql.ts'
import { abandonmentNow, withoutTenant } from './tenant-context.ts'

declare module '../base/services.ts' {
  interface Services {
    /** The replica that expensive reads may use; null without DATABASE_READ_URL. */
    replica: Replica | null
  }
}

/** Time between two probes of the replica, and the time in which it answers one. */
const PERIOD_MS = 1000
const PROBE_MS = 1000

/** Time in which a read has a connection that has replayed its position, before it runs on the primary. */
const START_MS = 1000

/** Time that a read waits for the replay of its position, which takes milliseconds on a replica that keeps up. */
const REPLAY_MS = 200
const FIRST_PAUSE_MS = 4

/** Most positions of the primary kept to measure the lag: of an hour. */
const MAX_POSITIONS = 3600

/** Why a statement runs on the primary. */
type Reason = 'unavailable' | 'lag' | 'replay' | 'busy' | 'error'

const READS = Symbol('reads')

/** Executes reads, each in a statement or in a transaction. */
export type Reads = Queryable & {
  readonly [READS]: true
  /** Runs reads in one transaction, which may be repeated. */
  transaction<T>(work: (db: Queryable) => Promise<T>): Promise<T>
}

type Work<T> = (db: DatabasePoolConnection) => Promise<T>

/** Position of the primary that the reads of a call require; null before the first one. */
type Required = { primary: PrimaryFacts | null; position: number }

type Problem = { reason: Reason; detail: string }

const unanswered = ({ message }: Error): Problem => ({ reason: 'unavailable', detail: `does not answer: ${message}` })

type Outcome<T> = { value: T } | { reason: Reason }

export type ReplicaOptions = {
  databaseUrl: string
  primary: Pool
  /** Lag above which it is not read. */
  maxLagMs: number
  log: Logger
  pool: Omit<PoolOptions, 'databaseUrl' | 'watchdog'>
}

/** Runs work that is not part of a call. */
const independently = <T>(work: () => T): T => onSeparateConnection(() => withoutTenant(work))

/** Returns reads that run on the primary. */
export const readsOfPrimary = (pool: Pool): Reads =>
  readsBy(
    work => work(pool),
    work => inTransaction(pool, work),
  )

function readsBy(
  run: <T>(work: (db: Queryable) => Promise<T>) => Promise<T>,
  transaction: Reads['transaction'],
): Reads {
  const methods = STATEMENT_METHODS.map(method => [
    method,
    (query: never) => run(db => db[method](query) as Promise<unknown>),
  ])
  return Object.assign(Object.fromEntries(methods), { transaction, [READS]: true }) as Reads
}

/** Returns the reads of a read operation from its context: on the replica, if it may use one. */
export const readsOf = ({ db, services }: { db: Queryable; services: { pool: Pool } }): Reads =>
  READS in db ? (db as Reads) : readsOfPrimary(services.pool)

/**
 * A streaming replica of the primary, for expensive reads.
 *
 * The reads of a call first read the position of the log of the primary, so they see at least every change that was committed
 * before: by the caller in any process, by workers, and of the rows by which the call was authorized. Calls that begin
 * meanwhile share that statement. Each statement verifies, on its connection, that the server is a standby of the primary and
 * has replayed the position. It waits for it for a short time, and otherwise runs on the primary, as do all that follow in the
 * call; so does a statement that fails, because reads can be repeated.
 *
 * A probe each second decides whether the replica is read: it is not while it does not answer, is no standby of the primary
 * any more, or lags. Running statements of a replica that stops answering are repeated on the primary.
 */
export class Replica {
  readonly #options: ReplicaOptions
  readonly #primaryFacts = coalescedReads<PrimaryFacts>()
  readonly #timer: NodeJS.Timeout
  readonly #probe: () => Promise<void>
  #pool: Pool | null = null
  #watchdog: ServerWatchdog | null = null
  #client: DatabaseClient | null = null
  /** Why it is not read: a reason for metrics, and a text for the log. */
  #problem: Problem | null = { reason: 'unavailable', detail: '' }
  /** Aborted when the replica is not read any more. */
  #reading = new AbortController()
  /** Positions of the primary that the replica has not replayed, with the time when they were first read. */
  #positions: { position: number; since: number }[] = []
  /** A position for which reads have waited in vain: later ones do not wait until the replica has replayed it. */
  #awaited = Number.POSITIVE_INFINITY
  #closed = false

  constructor(options: ReplicaOptions) {
    this.#options = options
    const probe = exclusiveLoop('replica', { periodMs: PERIOD_MS, log: options.log }, () => this.#updateProblem())
    this.#probe = () => independently(probe)
    this.#timer = independently(() => setInterval(probe, PERIOD_MS)).unref()
    void this.#probe()
  }

  /** Returns the reads of one call. */
  reads(): Reads {
    const { primary } = this.#options
    const required: Required = { primary: null, position: 0 }
    let reason: Reason | null = null
    const run = async <T>(onReplica: Work<T>, onPrimary: () => Promise<T>): Promise<T> => {
      if (reason === null) {
        const outcome = await this.#readOnReplica(required, onReplica)
        if ('value' in outcome) {
          replicaReads.inc({ place: 'replica', reason: 'current' })
          return outcome.value
        }
        reason = outcome.reason
      }
      replicaReads.inc({ place: 'primary', reason })
      return onPrimary()
    }
    return readsBy(
      work => run(work, () => work(primary)),
      work =>
        run(
          connection => connection.transaction(work),
          () => inTransaction(primary, work),
        ),
    )
  }

  /** Returns the connection usage, null while it has never been read. */
  use(): PoolUse | null {
    return this.#pool && poolUse(this.#pool)
  }

  async close(): Promise<void> {
    this.#closed = true
    clearInterval(this.#timer)
    this.#reading.abort()
    this.#client?.destroy()
    replicaUp.remove()
    replicaLag.remove()
    // A silent server does not answer the end of its connections.
    if (this.#pool) await settledWithin(PROBE_MS, this.#pool.end())
    this.#watchdog?.close()
  }

  async #readOnReplica<T>(required: Required, work: Work<T>): Promise<Outcome<T>> {
    if (!this.#problem)
      try {
        required.primary ??= await this.#primaryFacts('', () => independently(() => this.#readPrimary()))
      } catch {
        return { reason: 'error' }
      }
    if (this.#problem) return { reason: this.#problem.reason }
    required.position = Math.max(required.position, required.primary?.position ?? 0)
    if (required.position >= this.#awaited) return { reason: 'replay' }
    try {
      return await this.#readWhenReplayed(required, work)
    } catch (error) {
      const kind = databaseErrorKind(error)
      // What has exceeded its limit here, or waits for connections of its project, would do so on the primary too.
      if (kind === null || kind === 'timeout' || error instanceof AppError || abandonmentNow()?.()) throw error
      if (kind === 'unavailable') void this.#probe()
      return { reason: 'error' }
    }
  }

  /** Runs work on a connection that has replayed a position, unless that takes too long or the replica stops answering. */
  async #readWhenReplayed<T>(required: Required, work: Work<T>): Promise<Outcome<T>> {
    const { signal } = this.#reading
    const attempt = { isLate: false, hasBegun: false }
    const reading = (this.#pool as Pool).connect(async connection => {
      if (attempt.isLate) return { reason: 'busy' as const }
      const reason = await this.#whenReplayed(connection, required)
      if (reason !== null || attempt.isLate) return { reason: reason ?? ('busy' as const) }
      attempt.hasBegun = true
      try {
        return { value: await work(connection) }
      } catch (error) {
        // Slonik would close a connection whose routine throws.
        return { error }
      }
    })
    reading.catch(() => {})
    let onStopped = () => {}
    const stopped = new Promise<Outcome<T>>(resolve => {
      onStopped = () => resolve({ reason: 'unavailable' })
      signal.addEventListener('abort', onStopped)
    })
    try {
      const first = await settledWithin(START_MS, Promise.race([reading, stopped]))
      if (!first && !attempt.hasBegun) {
        attempt.isLate = true
        void this.#probe()
        return { reason: 'busy' }
      }
      const outcome = first ?? (await Promise.race([reading, stopped]))
      if ('error' in outcome) throw outcome.error
      return outcome as Outcome<T>
    } finally {
      signal.removeEventListener('abort', onStopped)
    }
  }

  /** Waits until a connection has replayed a position; later reads of the call require what this one may see. */
  async #whenReplayed(connection: DatabasePoolConnection, required: Required): Promise<Reason | null> {
    const outcome = await pollUntil<Reason | 'replayed'>(
      async () => {
        const facts = await connection.one(replicaFacts)
        if (facts.position === null || replicaProblem(required.primary as PrimaryFacts, facts)) return 'unavailable'
        if (facts.position < required.position) return null
        required.position = facts.position
        return 'replayed'
      },
      { withinMs: REPLAY_MS, pauseMs: FIRST_PAUSE_MS, doubles: true },
    )
    if (outcome === 'replayed') return null
    if (outcome === 'unavailable') void this.#probe()
    else this.#awaited = Math.min(this.#awaited, required.position)
    return outcome ?? 'replay'
  }

  async #readPrimary(): Promise<PrimaryFacts> {
    return readPrimaryFacts(this.#options.primary)
  }

  /** Probes the replica and decides whether it is read. */
  async #updateProblem(): Promise<void> {
    const { log } = this.#options
    const { lagMs, problem } = await this.#findProblem()
    if (this.#closed) return
    replicaUp.set(problem ? 0 : 1)
    if (lagMs === null) replicaLag.remove()
    else replicaLag.set(lagMs / 1000)
    const previous = this.#problem
    this.#problem = problem
    if (problem && !previous) {
      this.#reading.abort()
      this.#reading = new AbortController()
    }
    if (problem?.detail === previous?.detail) return
    if (problem) log.warn({ reason: `DATABASE_READ_URL ${problem.detail}` }, 'replica is not read')
    else log.info('replica is read')
  }

  async #findProblem(): Promise<{ lagMs: number | null; problem: Problem | null }> {
    const answer = this.#readFacts().catch((error: Error) => error)
    // Without the primary no call is authorized, so nothing is read meanwhile.
    const [primary, replica] = await Promise.all([this.#readPrimary().catch(() => null), answer])
    if (replica instanceof Error) return { lagMs: null, problem: unanswered(replica) }
    if (!primary || this.#closed) return { lagMs: null, problem: this.#problem }
    const detail = replicaProblem(primary, replica)
    if (detail !== null) return { lagMs: null, problem: { reason: 'unavailable', detail } }
    const lagMs = this.#lagMs(primary.position, replica.position ?? 0)
    if (lagMs > this.#options.maxLagMs) return { lagMs, problem: { reason: 'lag', detail: 'lags too much' } }
    if (this.#pool) return { lagMs, problem: null }
    return { lagMs, problem: await this.#openPool().then(() => null, unanswered) }
  }

  /** Returns for how long the replica has not replayed a position of the primary. */
  #lagMs(primary: number, replica: number): number {
    const now = performance.now()
    if (replica >= this.#awaited) this.#awaited = Number.POSITIVE_INFINITY
    if (primary > (this.#positions.at(-1)?.position ?? -1)) this.#positions.push({ position: primary, since: now })
    // After a failover, positions may begin below previous positions.
    this.#positions = this.#positions
      .filter(({ position }) => position > replica && position <= primary)
      .slice(0, MAX_POSITIONS)
    return this.#positions.length > 0 ? now - this.#positions[0].since : 0
  }

  async #readFacts(): Promise<ReplicaFacts> {
    const client = this.#client ?? this.#newClient()
    const answer = client.isConnected
      ? client.query(replicaFacts.sql)
      : client.connect().then(() => client.query(replicaFacts.sql))
    try {
      const result = await settledWithin<{ rows: object[] } | undefined>(PROBE_MS, answer)
      if (!result) throw new DatabaseUnresponsiveError(`no answer within ${PROBE_MS} ms`)
      return ReplicaFacts.parse(result.rows[0])
    } catch (error) {
      answer.catch(() => {})
      if (this.#client === client) this.#client = null
      client.destroy()
      throw error
    }
  }

  #newClient(): DatabaseClient {
    const { databaseUrl, pool } = this.#options
    const client = new DatabaseClient({ connectionString: databaseUrl, application_name: pool.applicationName })
    client.on('error', () => {
      if (this.#client === client) this.#client = null
    })
    this.#client = client
    return client
  }

  async #openPool(): Promise<void> {
    const { databaseUrl, log, pool: options } = this.#options
    this.#watchdog ??= watchServer({
      databaseUrl,
      listenUrl: databaseUrl,
      notifications: { healthy: () => false, ask: async () => null, reconnect: () => {} },
      log: log.child({ database: 'replica' }),
    })
    const pool = await openPool({
      ...options,
      // A server that was promoted meanwhile accepts writes.
      databaseUrl: withParameters(databaseUrl, { options: '-c default_transaction_read_only=on' }),
      watchdog: this.#watchdog,
    })
    pool.on('error', error => log.debug({ err: error }, 'database error'))
    if (this.#closed) await pool.end()
    else this.#pool = pool
  }
}

/** Returns the replica of DATABASE_READ_URL, which is probed from now on; null without one. */
export const replicaOf = (
  { DATABASE_READ_URL: databaseUrl, READ_MAX_LAG_SECONDS }: Config,
  options: Pick<ReplicaOptions, 'primary' | 'log' | 'pool'>,
): Replica | null =>
  databaseUrl ? new Replica({ ...options, databaseUrl, maxLagMs: READ_MAX_LAG_SECONDS * 1000 }) : null
