import { z } from 'zod'
import { type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { rootMark } from '../../core/db/trigger-chain.ts'
import type { FiringRow } from './model.ts'

/** Breadth: how many firings an event, or a firing that no event caused, may lead to in all. */

/** As much of a firing as says what it began with. */
export type Begun = Partial<Pick<FiringRow, 'id' | 'event_id' | 'root_id'>> & Pick<FiringRow, 'causation_chain'>

/** What everything that a firing of a trigger causes carries: what it began with, and the triggers that led to it. */
export function chainBehind({ id, event_id, root_id, causation_chain }: Begun, triggerId: string): string[] {
  const root = root_id ?? event_id ?? id
  return [...(root ? [rootMark(root)] : []), ...causation_chain, triggerId]
}

/** What a firing counts to. `chained`: triggers led from it to the event. */
export type FanoutRoot = { id: string; project_id: string; chained: boolean }

const Fanout = z.object({ root_id: z.string(), firings: z.int(), skipped: z.int() })
type Fanout = z.output<typeof Fanout>
const fanout = sql.type(Fanout)

/** The counts of roots as they are, without a lock. By the primary key. */
const fanoutsOf = (db: Queryable, rootIds: readonly string[]): Promise<readonly Fanout[]> =>
  db.any(fanout`
    select root_id, firings, skipped from trigger_fanouts where root_id = any(${sql.array([...rootIds], 'text')})`)

/**
 * Locks the counts of roots in the order of their ids. A new one begins with what the root has fired itself: one probe of
 * trigger_firings_key for each event trigger of the project.
 */
async function lockFanouts(db: Queryable, roots: readonly FanoutRoot[]): Promise<readonly Fanout[]> {
  await db.query(voidStatement`
    insert into trigger_fanouts (root_id, project_id, firings)
    select r.id, r.project_id, greatest(1, (
      select count(*) from triggers g
      join trigger_firings f on f.trigger_id = g.id and f.idempotency_key = r.id || ':' || g.id
      where g.project_id = r.project_id and g.type = 'event'))
    from ${sql.unnest(
      roots.map(({ id, project_id }) => [id, project_id]),
      ['text', 'text'],
    )} as r (id, project_id)
    where not exists (select from trigger_fanouts t where t.root_id = r.id)
    order by r.id collate "C" on conflict do nothing`)
  return db.any(fanout`
    select t.root_id, t.firings, t.skipped from trigger_fanouts t
    where t.root_id = any(${sql.array(
      roots.map(({ id }) => id),
      'text',
    )}) order by t.root_id collate "C" for no key update`)
}

/** Notes what locked roots have led to by now. */
const setFanouts = (db: Queryable, fanouts: readonly Fanout[]) =>
  db.query(voidStatement`
    update trigger_fanouts t set firings = f.firings, skipped = f.skipped
    from ${sql.unnest(
      fanouts.map(({ root_id, firings, skipped }) => [root_id, firings, skipped]),
      ['text', 'int4', 'int4'],
    )} as f (root_id, firings, skipped) where t.root_id = f.root_id`)

/**
 * The counts of the roots of some events that are dispatched together. A root that no trigger led from needs no row while it fires
 * no more than it may: all its triggers are matched at once. Callers come by the order of the ids of roots, so that two
 * dispatches never wait for each other.
 */
export class Breadth {
  readonly #max: number
  readonly #counts = new Map<string, Fanout>()
  readonly #locked = new Set<string>()

  constructor(max: number) {
    this.#max = max
  }

  /** Reads what roots have led to, so that of one that is spent nothing is evaluated. */
  async read(db: Queryable, roots: readonly FanoutRoot[]): Promise<void> {
    const chained = roots.filter(root => root.chained).map(({ id }) => id)
    if (chained.length === 0) return
    for (const found of await fanoutsOf(db, [...new Set(chained)])) this.#counts.set(found.root_id, found)
  }

  isSpent = ({ id }: FanoutRoot): boolean => (this.#counts.get(id)?.firings ?? 0) >= this.#max

  /** Locks the roots of firings that are about to be admitted, where their counts are shared or will not do. */
  async lock(db: Queryable, wanted: readonly FanoutRoot[]): Promise<void> {
    const many = Map.groupBy(wanted, ({ id }) => id)
    const unlocked = [...many.values()].flatMap(([root, ...more]) => {
      const { id, chained } = root
      if (this.#locked.has(id)) return []
      return chained || this.#countOf(id).firings + more.length >= this.#max ? [root] : []
    })
    if (unlocked.length === 0) return
    const own = new Map(unlocked.filter(({ chained }) => !chained).map(({ id }) => [id, this.#countOf(id)]))
    for (const found of await lockFanouts(db, unlocked)) {
      this.#locked.add(found.root_id)
      this.#counts.set(found.root_id, own.get(found.root_id) ?? found)
    }
  }

  /** Whether a root may lead to one more firing, which then counts. */
  admits({ id }: FanoutRoot): boolean {
    const count = this.#countOf(id)
    const admitted = count.firings < this.#max
    if (admitted) count.firings++
    else count.skipped++
    return admitted
  }

  /** How many firings a root was too broad for. */
  skippedOf = (id: string): number => this.#countOf(id).skipped

  async write(db: Queryable): Promise<void> {
    const counts = [...this.#counts.values()].filter(({ root_id }) => this.#locked.has(root_id))
    if (counts.length > 0) await setFanouts(db, counts)
  }

  #countOf(id: string): Fanout {
    let count = this.#counts.get(id)
    if (!count) {
      count = { root_id: id, firings: 0, skipped: 0 }
      this.#counts.set(id, count)
    }
    return count
  }
}

/** Deletes a batch of counts that began before a time. Index trigger_fanouts_created. */
export async function deleteFanouts(db: Queryable, before: Date, limit: number): Promise<number> {
  const { rowCount } = await db.query(voidStatement`
    delete from trigger_fanouts where root_id = any (array(
      select root_id from trigger_fanouts where created_at < ${before.toISOString()}::timestamptz
      order by created_at limit ${limit} for update skip locked))`)
  return rowCount
}
