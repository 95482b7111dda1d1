import { z } from 'zod'
import { type Fragment, sql, voidStatement } from '../db/sql.ts'
import type { Tx } from '../db/writer.ts'
import { extensionPoint } from '../declarations.ts'
import { HOLDER, hasProcessEnded, type ProcessIdentity } from '../process/holder.ts'
import type { Services } from '../process/services.ts'
import { delayedChannel, queues } from './queue.ts'

/**
 * What a module does with the leases that processes held which are gone: ends them, and wakes whoever goes on where no message of
 * theirs does. `isGone` is the condition on a holder. A process that was taken for gone and is not writes nothing once another
 * has claimed what it held: a lease that is ended counts as one that ran out.
 */
export const leaseHolding =
  extensionPoint<(tx: Tx, isGone: (holder: Fragment) => Fragment) => Promise<unknown>>('what holds leases')

const Beat = z.object({
  holder: z.string(),
  pid: z.int().nullable(),
  pid_started: z.string().nullable(),
  neighbour: z.boolean(),
  silent: z.boolean(),
})
const Beats = z.array(Beat)

/** Writes a heartbeat and reads those of others. */
const BEAT = `
  with mine as (
    insert into worker_heartbeats (instance_id, kinds, started_at, beat_at, holder, host, pid, pid_started)
    values ($1, $2, $3, now(), $4, $5, $6, $7)
    on conflict (instance_id) do update set beat_at = now(), kinds = excluded.kinds, started_at = excluded.started_at,
      holder = excluded.holder, host = excluded.host, pid = excluded.pid, pid_started = excluded.pid_started)
  select holder, pid, pid_started, coalesce(host = $5, false) as neighbour,
    beat_at < now() - $8 * interval '1 ms' as silent
  from worker_heartbeats where holder <> $4`

const gone = sql.type(z.object({ holder: z.string() }))
const named = sql.type(z.object({ name: z.string() }))

export type Worker = { instance: string; kinds: readonly string[]; startedAt: string; identity: ProcessIdentity | null }

/** A shorter silence says nothing: a busy machine keeps processes from the processor. */
const LEAST_SILENCE_MS = 2000

/** Writes the heartbeat of this worker, and ends the leases of workers that are gone. */
export class Heartbeat {
  readonly #services: Services
  readonly #worker: Worker
  #beatAt = Number.NEGATIVE_INFINITY
  /** The first of the heartbeats that followed each other in time. */
  #steadySince = Number.NEGATIVE_INFINITY
  #underWay: Promise<void> = Promise.resolve()

  constructor(services: Services, worker: Worker) {
    this.#services = services
    this.#worker = worker
  }

  get ageMs(): number {
    return performance.now() - this.#beatAt
  }

  /**
   * A worker of this host is gone when its process is; another one when it was silent for two heartbeats, while this one was
   * not: after an outage of the database all of them were silent.
   */
  beat(): Promise<void> {
    const beat = this.#write()
    this.#underWay = Promise.allSettled([this.#underWay, beat]).then(() => {})
    return beat
  }

  /** Says that the worker is no more, behind the heartbeats that are under way: they would say again that it is. */
  async end(): Promise<void> {
    await this.#underWay
    await this.#services.pool.query(
      voidStatement`delete from worker_heartbeats where instance_id = ${this.#worker.instance}`,
    )
  }

  async #write(): Promise<void> {
    const { config, log, queues: own } = this.#services
    const { instance, kinds, startedAt, identity } = this.#worker
    const silentMs = Math.max(2 * config.WORKER_HEARTBEAT_INTERVAL_MS, LEAST_SILENCE_MS)
    const asked = performance.now()
    if (this.ageMs > silentMs) this.#steadySince = asked
    // On the connections of the queues, which no work holds: who is busy is not gone.
    const { host = null, pid = null, started = null } = identity ?? {}
    const { rows } = await own.db.executeSql(BEAT, [instance, kinds, startedAt, HOLDER, host, pid, started, silentMs])
    const others = Beats.parse(rows)
    this.#beatAt = asked
    const isGone = ({ neighbour, pid, pid_started, silent }: z.output<typeof Beat>) =>
      (neighbour && pid !== null && pid_started !== null && hasProcessEnded({ pid, started: pid_started })) ||
      (silent && asked - this.#steadySince > silentMs)
    const left = others.filter(isGone).map(({ holder }) => holder)
    if (left.length === 0) return
    const taken = await this.#takeOver(left)
    if (taken.length > 0) log.warn({ holders: taken }, 'leases of lost workers ended')
  }

  /** Of several workers that find the same one gone, one ends its leases. */
  #takeOver(holders: readonly string[]): Promise<readonly string[]> {
    const names = queues.all().map(({ name }) => name)
    return this.#services.write(async tx => {
      const taken = await tx.anyFirst(gone`
        with left_over as (
          select instance_id, holder from worker_heartbeats
          where holder = any(${sql.array([...holders], 'text')}) for update skip locked)
        update worker_heartbeats w set holder = null from left_over l where w.instance_id = l.instance_id
        returning l.holder`)
      if (taken.length === 0) return taken
      const isGone = (holder: Fragment): Fragment => sql.fragment`${holder} = any(${sql.array([...taken], 'text')})`
      for (const endLeases of leaseHolding.all()) await endLeases(tx, isGone)
      // job_i7 (name, group_id; active) serves it.
      const found = await tx.anyFirst(named`
        with ended as (
          update pgboss.job_common j set heartbeat_on = 'epoch'
          where j.name = any(${sql.array(names, 'text')}) and j.state = 'active' and j.group_id is not null
            and ${isGone(sql.fragment`j.group_tier`)}
          returning j.name)
        select distinct name from ended`)
      for (const name of found) tx.notify(delayedChannel, name)
      return taken
    })
  }
}
