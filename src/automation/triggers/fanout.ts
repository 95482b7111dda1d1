import { z } from 'zod'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { rootMark } from '#core/db/trigger-chain.ts'
import type { FiringRow } from './model.ts'

/** Fields of a firing that identify its root: the event or firing that the causal chain started with. */
export type FiringOrigin = Partial<Pick<FiringRow, 'id' | 'event_id' | 'root_id'>> & Pick<FiringRow, 'causation_chain'>

/**
 * Returns the trigger chain of all work that a firing causes: its root, the triggers that led to it, and its trigger.
 */
export function chainOfFiring({ id, event_id, root_id, causation_chain }: FiringOrigin, triggerId: string): string[] {
  const root = root_id ?? event_id ?? id
  return [...(root ? [rootMark(root)] : []), ...causation_chain, triggerId]
}

/** Root that a firing counts towards. `chained`: whether triggers led from the root to the event. */
export type FanoutRoot = { id: string; project_id: string; chained: boolean }

const FanoutCount = z.object({ root_id: z.string(), firings: z.int(), skipped: z.int() })
type FanoutCount = z.output<typeof FanoutCount>
const fanoutRow = sql.type(FanoutCount)

/** Returns the counts of roots without locking them. By the primary key. */
const listFanouts = (db: Queryable, rootIds: readonly string[]): Promise<readonly FanoutCount[]> =>
  db.any(fanoutRow`
    select root_id, firings, skipped from trigger_fanouts where root_id = any(${sql.array([...rootIds], 'text')})`)

/**
 * Locks the counts of roots in id order. A new count starts with the direct firings of the root: one probe of
 * trigger_firings_key per event trigger of the project.
 */
async function lockFanouts(db: Queryable, roots: readonly FanoutRoot[]): Promise<readonly FanoutCount[]> {
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
  return db.any(fanoutRow`
    select t.root_id, t.firings, t.skipped from trigger_fanouts t
    where t.root_id = any(${sql.array(
      roots.map(({ id }) => id),
      'text',
    )}) order by t.root_id collate "C" for no key update`)
}

/** Writes the counts of locked roots. */
const updateFanouts = (db: Queryable, fanouts: readonly FanoutCount[]) =>
  db.query(voidStatement`
    update trigger_fanouts t set firings = f.firings, skipped = f.skipped
    from ${sql.unnest(
      fanouts.map(({ root_id, firings, skipped }) => [root_id, firings, skipped]),
      ['text', 'int4', 'int4'],
    )} as f (root_id, firings, skipped) where t.root_id = f.root_id`)

/**
 * Limits the number of firings per root within one dispatch. A root without chained firings needs no stored count while
 * it is within the limit, because all its triggers are matched in one dispatch. Callers process events in the order of
 * their root ids, so that two dispatches cannot deadlock.
 */
export class FanoutLimiter {
  readonly #max: number
  readonly #counts = new Map<string, FanoutCount>()
  readonly #locked = new Set<string>()

  constructor(max: number) {
    this.#max = max
  }

  /** Reads the counts of roots, so that nothing is evaluated for an exhausted root. */
  async read(db: Queryable, roots: readonly FanoutRoot[]): Promise<void> {
    const chained = roots.filter(root => root.chained).map(({ id }) => id)
    if (chained.length === 0) return
    for (const count of await listFanouts(db, [...new Set(chained)])) this.#counts.set(count.root_id, count)
  }

  readonly isExhausted = ({ id }: FanoutRoot): boolean => (this.#counts.get(id)?.firings ?? 0) >= this.#max

  /**
   * Locks the counts of roots, one entry per firing, that are shared with other dispatches or would exceed the limit.
   */
  async lock(db: Queryable, roots: readonly FanoutRoot[]): Promise<void> {
    const byId = Map.groupBy(roots, ({ id }) => id)
    const unlocked = [...byId.values()].flatMap(([root, ...more]) => {
      const { id, chained } = root
      if (this.#locked.has(id)) return []
      return chained || this.#countOf(id).firings + more.length >= this.#max ? [root] : []
    })
    if (unlocked.length === 0) return
    const own = new Map(unlocked.filter(({ chained }) => !chained).map(({ id }) => [id, this.#countOf(id)]))
    for (const count of await lockFanouts(db, unlocked)) {
      this.#locked.add(count.root_id)
      this.#counts.set(count.root_id, own.get(count.root_id) ?? count)
    }
  }

  /** Counts one firing as admitted or skipped. Returns whether it is admitted. */
  admit({ id }: FanoutRoot): boolean {
    const count = this.#countOf(id)
    const admitted = count.firings < this.#max
    if (admitted) count.firings++
    else count.skipped++
    return admitted
  }

  readonly skippedCount = (id: string): number => this.#countOf(id).skipped

  async write(db: Queryable): Promise<void> {
    const counts = [...this.#counts.values()].filter(({ root_id }) => this.#locked.has(root_id))
    if (counts.length > 0) await updateFanouts(db, counts)
  }

  #countOf(id: string): FanoutCount {
    let count = this.#counts.get(id)
    if (!count) {
      count = { root_id: id, firings: 0, skipped: 0 }
      this.#counts.set(id, count)
    }
    return count
  }
}

/** Deletes a batch of counts created before a time. Index trigger_fanouts_created. */
export async function deleteFanouts(db: Queryable, before: Date, limit: number): Promise<number> {
  const { rowCount } = await db.query(voidStatement`
    delete from trigger_fanouts where root_id = any (array(
      select root_id from trigger_fanouts where created_at < ${before.toISOString()}::timestamptz
      order by created_at limit ${limit} for update skip locked))`)
  return rowCount
}
