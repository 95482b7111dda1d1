import { z } from 'zod'
import { AppError } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { Batcher } from '#core/db/batcher.ts'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { EndUser } from '#core/iam/caller.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import { principalChannel } from '#identity/principals/principal-cache.ts'

/** Open streams of end users and projects, limited over all web processes. */

const STREAM_RETRY_SECONDS = 10
/** Pause before numbers are written again that could not be written. */
const REWRITE_MS = 1000
/** Subjects of a statement, each of which it may lock. */
const BATCH = 100

/** Returns STREAM_LIMIT_EXCEEDED. */
const limitReached = (scope: 'project' | 'actor', max: number): AppError =>
  new AppError('STREAM_LIMIT_EXCEEDED', {
    meta: { scope, max },
    headers: { 'Retry-After': String(STREAM_RETRY_SECONDS) },
  })

const numbersRow = sql.type(z.object({ subject: z.string(), allowed: z.int(), others: z.int() }))

type Numbers = { subject: string; kept: number; wanted: number; max: number }

/** Sets the numbers of a process and returns those allowed, with the numbers of the other processes. By the primary key. */
const setOpenStreams = (db: Queryable, presence: string, numbers: readonly Numbers[]) => {
  const integers = (of: (each: Numbers) => number) => sql.array(numbers.map(of), 'int4')
  return db.any(numbersRow`
    select set_subject as subject, allowed, others from set_open_streams(
      ${presence}::bigint, ${sql.array(
        numbers.map(each => each.subject),
        'text',
      )},
      ${integers(each => each.kept)}, ${integers(each => each.wanted)}, ${integers(each => each.max)})`)
}

/** A change of a number: a stream to open up to a maximum, a stream that has ended, or a number to write again. */
type Change = { subject: string } & ({ kind: 'open'; max: number } | { kind: 'end' | 'rewrite' })

/** The open streams of this process. All its writes are in sequence, so that each states the whole number of a subject. */
class OpenStreams {
  readonly #services: Services
  readonly #numbers = new Map<string, number>()
  /** Subjects whose rows may not have the current number. */
  readonly #unwritten = new Set<string>()
  readonly #writes = new Batcher<Change, boolean>(changes => this.#write(changes), { max: BATCH })
  readonly #revocable = new Map<string, Set<() => void>>()
  readonly #unlisten: () => void
  #timer: NodeJS.Timeout | undefined
  #closing = false

  constructor(services: Services) {
    this.#services = services
    // After the subscription of the cache of principals, which then has dropped the actor.
    this.#unlisten = services.notifications.listen(principalChannel, source => this.#onChanged(source), {
      // The rows of the former connection have ended with it.
      onReconnect: () => this.#rewrite(this.#numbers.keys()),
    })
  }

  /** Counts a stream of a subject until its `end`. @throws STREAM_LIMIT_EXCEEDED */
  async open(scope: 'project' | 'actor', subject: string, max: number): Promise<void> {
    if (!(await this.#writes.add({ subject, kind: 'open', max }))) throw limitReached(scope, max)
  }

  end(subject: string): void {
    void this.#writes.add({ subject, kind: 'end' }).catch(() => {})
  }

  /** Calls `onRevoked` for changes of the tokens of an actor until the result is called. */
  watch(actorId: string, onRevoked: () => void): () => void {
    const watchers = this.#revocable.get(actorId) ?? new Set()
    this.#revocable.set(actorId, watchers.add(onRevoked))
    return () => {
      watchers.delete(onRevoked)
      if (watchers.size === 0 && this.#revocable.get(actorId) === watchers) this.#revocable.delete(actorId)
    }
  }

  #onChanged(source: string): void {
    const [kind, id] = source.split(':', 2)
    if (kind === 'actor') for (const onRevoked of [...(this.#revocable.get(id) ?? [])]) onRevoked()
  }

  async #write(changes: readonly Change[]): Promise<boolean[]> {
    for (const { subject, kind } of changes) {
      const open = this.#numbers.get(subject) ?? 0
      if (kind === 'end') this.#keep(subject, open - 1)
    }
    const subjects = [...new Set([...changes.map(({ subject }) => subject), ...this.#unwritten])].slice(0, BATCH).sort()
    const opening = changes.flatMap(change => (change.kind === 'open' ? change : []))
    const numbers = subjects.map(subject => {
      const wants = opening.filter(change => change.subject === subject)
      const kept = this.#numbers.get(subject) ?? 0
      return { subject, kept, wanted: kept + wants.length, max: Math.max(0, ...wants.map(({ max }) => max)) }
    })
    try {
      const { pool, notifications } = this.#services
      const rows = await setOpenStreams(pool, notifications.presence(), numbers)
      const allowed = new Map(rows.map(row => [row.subject, row]))
      const results = changes.map(change => {
        const row = allowed.get(change.subject)
        const open = this.#numbers.get(change.subject) ?? 0
        if (change.kind !== 'open' || !row || open >= row.allowed || open + row.others >= change.max) return false
        this.#keep(change.subject, open + 1)
        return true
      })
      for (const { subject } of numbers) this.#unwritten.delete(subject)
      // Streams with different maximums may have been counted together.
      this.#rewrite(rows.filter(row => row.allowed !== (this.#numbers.get(row.subject) ?? 0)).map(row => row.subject))
      return results
    } catch (error) {
      for (const { subject } of numbers) this.#unwritten.add(subject)
      if (!this.#closing)
        this.#timer ??= setTimeout(() => {
          this.#timer = undefined
          this.#rewrite(this.#unwritten)
        }, REWRITE_MS).unref()
      throw error
    }
  }

  #keep(subject: string, open: number): void {
    if (open > 0) this.#numbers.set(subject, open)
    else this.#numbers.delete(subject)
  }

  #rewrite(subjects: Iterable<string>): void {
    for (const subject of [...subjects]) void this.#writes.add({ subject, kind: 'rewrite' }).catch(() => {})
  }

  async close(): Promise<void> {
    this.#closing = true
    this.#unlisten()
    clearTimeout(this.#timer)
    await this.#writes.close()
  }
}

/** Returns the open streams of this process. */
export const openStreams = processSingleton(
  services => new OpenStreams(services),
  streams => streams.close(),
)

/** Takes a stream of an end user until it is released. @throws STREAM_LIMIT_EXCEEDED */
export async function takeEndUserStream(
  services: Services,
  { actor_id, limits }: EndUser,
  onRevoked: () => void,
): Promise<() => void> {
  const streams = openStreams(services)
  // Before the wait, during which the tokens may be revoked.
  const unwatch = streams.watch(actor_id, onRevoked)
  try {
    await streams.open('actor', actor_id, limits.streams)
    return () => {
      unwatch()
      streams.end(actor_id)
    }
  } catch (error) {
    unwatch()
    throw error
  }
}

/** Deletes the numbers of processes that are gone, in batches; returns their number. */
export const deleteDeadStreams = (
  { pool }: Pick<Services, 'pool'>,
  stopping: AbortSignal | undefined,
): Promise<number> =>
  deleteInBatches(async limit => {
    const { rowCount } = await pool.query(voidStatement`
      delete from open_streams where ctid = any (array(
        select ctid from open_streams where pg_try_advisory_xact_lock_shared(holder) limit ${limit} for update skip locked))`)
    return rowCount
  }, stopping)
