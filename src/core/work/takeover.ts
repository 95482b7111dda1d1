import { z } from 'zod'
import { correctSystemClock } from '../base/clock.ts'
import { extensionPoint } from '../base/declarations.ts'
import { hasProcessEnded, type ProcessIdentity } from '../base/holder.ts'
import { release } from '../base/release.ts'
import type { Services } from '../base/services.ts'
import { type Fragment, sql, voidStatement } from '../db/sql.ts'
import { delayedChannel, namedStatement, queues } from '../queues/queue.ts'
import type { Tx } from '../writes/writer.ts'
import type { QueueSlots } from './handler.ts'
import { countWorkerLoss } from './message-claims.ts'

/**
 * Hooks that end the leases of lost processes in the tables of a module, and send wake-ups where no message does.
 * `isGone` builds the SQL condition on a holder. An ended lease counts as expired: a process that was wrongly
 * considered lost writes nothing after another one has claimed its work.
 */
export const leaseHolding = extensionPoint<
  (tx: Tx, isGone: (holder: Fragment) => Fragment, services: Services) => Promise<unknown>
>({
  name: 'lease holders',
  folder: 'core/work',
  description: 'Ends the leases of lost processes in tables of a module, and wakes their work',
})

const OtherWorker = z.object({
  holder: z.string().nullable(),
  pid: z.int().nullable(),
  pid_started: z.string().nullable(),
  neighbour: z.boolean(),
  silent: z.boolean(),
  claims: z.boolean(),
  clock_ahead_ms: z.number(),
})
const OtherWorkers = z.array(OtherWorker)

/**
 * Writes a heartbeat and returns the heartbeats of the other workers, or one row without a holder, with the milliseconds
 * by which the clock of this process is ahead of the database. Without a holder ($4), it returns no others. Web processes,
 * which have no kinds, claim no messages.
 */
const BEAT = `
  with mine as (
    insert into worker_heartbeats
      (instance_id, kinds, started_at, beat_at, holder, host, pid, pid_started, version, queues, clock_ahead_ms)
    values ($1, $2, now(), now(), $4, $5, $6, $7, $9, $10, extract(epoch from $3::timestamptz - now()) * 1000)
    on conflict (instance_id) do update set beat_at = now(), kinds = excluded.kinds, holder = excluded.holder, host = excluded.host, pid = excluded.pid, pid_started = excluded.pid_started,
      version = excluded.version, queues = excluded.queues, clock_ahead_ms = excluded.clock_ahead_ms
    returning clock_ahead_ms)
  select o.holder, o.pid, o.pid_started, coalesce(o.host = $5, false) as neighbour,
    coalesce(o.beat_at < now() - $8 * interval '1 ms' and not exists (
      select from worker_heartbeats l where l.holder = o.holder and l.beat_at >= now() - $8 * interval '1 ms'), false) as silent,
    coalesce(o.kinds <> '{}', false) as claims, mine.clock_ahead_ms
  from mine left join worker_heartbeats o on o.holder <> $4`

const beatStatement = namedStatement('beat', BEAT)

const holderRow = sql.type(z.object({ holder: z.string() }))
const queueRow = sql.type(z.object({ name: z.string() }))

export type Worker = {
  instance: string
  /** Concerns; none for a web process, which claims no messages. */
  kinds: readonly string[]
  /**
   * HOLDER of a process with leases, which ends the leases of lost processes too; null for a web process without: its
   * heartbeats compare its clock.
   */
  holder: string | null
  identity: ProcessIdentity | null
  /** Slots by queue. */
  queues?: Record<string, QueueSlots>
}

/** Shortest silence that counts: on a busy machine heartbeats are late. */
const MIN_SILENCE_MS = 2000

/** Difference of clocks that is corrected; above the delay of a statement. */
const MAX_CLOCK_DIFFERENCE_MS = 2000

/** Writes the heartbeat of this process and ends the leases of lost workers. */
export class Heartbeat {
  readonly #services: Services
  readonly #worker: Worker
  #beatAt = Number.NEGATIVE_INFINITY
  /** Time of the first heartbeat in the current series without a gap. */
  #steadySince = Number.NEGATIVE_INFINITY
  #pending: Promise<void> = Promise.resolve()
  #clockDiffers = false
  #workers = 1

  constructor(services: Services, worker: Worker) {
    this.#services = services
    this.#worker = worker
  }

  get ageMs(): number {
    return performance.now() - this.#beatAt
  }

  /** Whether other processes count this one as alive. */
  get isRecent(): boolean {
    return this.ageMs < this.#silentMs
  }

  /** Number of live workers as of the last heartbeat of a worker, with this one. */
  get workers(): number {
    return this.#workers
  }

  /**
   * Writes a heartbeat and ends the leases of lost workers. A worker of this host is lost when its process has ended; a
   * worker of another host when it missed two heartbeats while this one did not, since a database outage silences all
   * of them.
   */
  beat(): Promise<void> {
    const beat = this.#write()
    this.#pending = Promise.allSettled([this.#pending, beat]).then(() => {})
    return beat
  }

  /** Deletes the worker's heartbeat, after pending ones, which would insert it again. */
  async end(): Promise<void> {
    await this.#pending
    await this.#services.pool.query(
      voidStatement`delete from worker_heartbeats where instance_id = ${this.#worker.instance}`,
    )
  }

  /** Time without a heartbeat after which a process of another host is lost. */
  get #silentMs(): number {
    return Math.max(2 * this.#services.config.WORKER_HEARTBEAT_INTERVAL_MS, MIN_SILENCE_MS)
  }

  async #write(): Promise<void> {
    const { log } = this.#services
    const { instance, kinds, holder, identity, queues = {} } = this.#worker
    const silentMs = this.#silentMs
    const sentAt = performance.now()
    if (this.ageMs > silentMs) this.#steadySince = sentAt
    // On the connections of the queues, which no handler holds, so that a busy worker can still write it.
    const { host = null, pid = null, started = null } = identity ?? {}
    const { rows } = await this.#services.queues.db.executeSql(beatStatement(), [
      instance,
      kinds,
      new Date().toISOString(),
      holder,
      host,
      pid,
      started,
      silentMs,
      release,
      JSON.stringify(queues),
    ])
    const others = OtherWorkers.parse(rows)
    this.#beatAt = sentAt
    this.#workers = 1 + others.filter(({ holder, silent, claims }) => holder !== null && claims && !silent).length
    this.#compareClocks(others[0]?.clock_ahead_ms ?? 0)
    const isGone = ({ neighbour, pid, pid_started, silent }: z.output<typeof OtherWorker>) =>
      (neighbour && pid !== null && pid_started !== null && hasProcessEnded({ pid, started: pid_started })) ||
      (silent && sentAt - this.#steadySince > silentMs)
    const lost = others.flatMap(other => (other.holder !== null && isGone(other) ? [other.holder] : []))
    if (lost.length === 0) return
    const ended = await this.#takeOver(lost)
    if (ended.length > 0) log.warn({ holders: ended }, 'leases of lost workers ended')
  }

  /** Corrects the clock of this process by the time of the database, and logs when the two begin or cease to differ. */
  #compareClocks(aheadMs: number): void {
    const differs = Math.abs(aheadMs) > MAX_CLOCK_DIFFERENCE_MS
    correctSystemClock(differs ? -aheadMs : 0)
    if (differs === this.#clockDiffers) return
    this.#clockDiffers = differs
    const { log } = this.#services
    if (differs) log.warn({ ahead_ms: Math.round(aheadMs) }, 'clock differs from the database')
    else log.info({ ahead_ms: Math.round(aheadMs) }, 'clock agrees with the database')
  }

  /** Ends the leases of lost workers. If several workers detect the same loss, only one ends the leases. */
  #takeOver(holders: readonly string[]): Promise<readonly string[]> {
    const names = queues.all().map(({ name }) => name)
    return this.#services.write(async tx => {
      const lost = await tx.anyFirst(holderRow`
        select holder from worker_heartbeats
        where holder = any(${sql.array([...holders], 'text')}) for update skip locked`)
      if (lost.length === 0) return lost
      const isGone = (holder: Fragment): Fragment => sql.fragment`${holder} = any(${sql.array([...lost], 'text')})`
      for (const endLeases of leaseHolding.all()) await endLeases(tx, isGone, this.#services)
      // job_i7 (name, group_id; active) serves it.
      const affected = await tx.anyFirst(queueRow`
        with ended as (
          update pgboss.job_common j set heartbeat_on = 'epoch', started_on = now(), ${countWorkerLoss}
          where j.name = any(${sql.array(names, 'text')}) and j.state = 'active' and j.group_id is not null
            and ${isGone(sql.fragment`j.group_tier`)}
          returning j.name)
        select distinct name from ended`)
      for (const name of affected) tx.notify(delayedChannel, name)
      // Last, because what ends the leases reads the names of the processes.
      await tx.query(
        voidStatement`update worker_heartbeats w set holder = null where ${isGone(sql.fragment`w.holder`)}`,
      )
      return lost
    })
  }
}
