import { z } from 'zod'
import { allOf, type Fragment, idStatement, type Queryable, sql } from '../db/sql.ts'
import type { Tx } from '../db/writer.ts'
import { countsText, type ErrorCode, raise } from './errors.ts'
import { type Kind, type KindRow, kinds, type Reference } from './kind.ts'

/** What keeps a row from being deleted, mostly by plural kind name; kinds without such rows are absent. */
export type Dependents = {
  counts: Record<string, number>
  /** At most 5 ids a kind, newest first. */
  sample_ids: Record<string, string[]>
  /** Whether force deletes them all. */
  forcible: boolean
}

/** Rows of one kind that name the target, directly or through rows that its delete takes along. */
type Level = {
  kind: Kind
  /** Null for rows that are not counted. */
  label: string | null
  on_delete: 'block' | 'force' | 'follow'
  where: Fragment
  letGo: Reference['letGo']
  stays: boolean
}

const SAMPLE = 5

/** The condition that a row names one of the ids that a subquery gives. */
export function referenceCondition({ column, many, where, among }: Reference, ids: Fragment): Fragment {
  const named = many
    ? sql.fragment`${sql.identifier([column])} && array(${ids})`
    : sql.fragment`${sql.identifier([column])} in (${ids})`
  return allOf([named, where, among && sql.fragment`id in (${among(ids)})`])
}

/** The same of rows that count for the delete of what they name: not those of projects that it was granted to. */
function bindsTo(reference: Reference, ids: Fragment): Fragment {
  if (!reference.grantable) return referenceCondition(reference, ids)
  const target = sql.identifier([kinds.get(reference.kind).table])
  return sql.fragment`${referenceCondition(reference, ids)} and project_id in (select o.project_id from ${target} o where o.id in (${ids}))`
}

/**
 * The declared references to `target`, and below each that goes with a delete the references to it in turn.
 * Ends because a kind is followed once on its path.
 */
function levels(target: string, id: Fragment, path: readonly string[] = []): Level[] {
  const found: Level[] = []
  for (const kind of kinds.all()) {
    for (const reference of kind.references) {
      const { on_delete, letGo, stays = false } = reference
      if (reference.kind !== target || on_delete === 'cascade' || on_delete === 'null') continue
      const where = bindsTo(reference, id)
      const label = reference.counted === undefined ? kind.plural : reference.counted
      found.push({ kind, label, on_delete, where, letGo, stays })
      if (on_delete !== 'block' && !letGo && !stays && !path.includes(kind.name)) {
        const ids = sql.fragment`select id from ${sql.identifier([kind.table])} where ${where}`
        found.push(...levels(kind.name, ids, [...path, kind.name]))
      }
    }
  }
  return found
}

const MeasuredSet = z.strictObject({ count: z.int(), ids: z.array(z.string()) })
type Measured = z.output<typeof MeasuredSet>
const measured = sql.type(MeasuredSet)

const locking = sql.type(z.strictObject({ counts: z.array(z.int()) }))

/** Counts and samples sets of rows in one statement, in the order of the sets. */
async function measure(db: Queryable, sets: readonly { kind: Kind; where: Fragment }[]): Promise<readonly Measured[]> {
  if (sets.length === 0) return []
  const parts = sets.map(({ kind, where }, index) => {
    const table = sql.identifier([kind.table])
    return sql.fragment`select ${index}::int as index, (select count(*) from ${table} where ${where}) as count,
      array(select id from ${table} where ${where} order by id desc limit ${SAMPLE}) as ids`
  })
  return db.any(measured`select count, ids from (${sql.join(parts, sql.fragment` union all `)}) as sets order by index`)
}

/** Sums up by label what is there. */
function summed(sets: readonly { label: string | null }[], measured: readonly Measured[]) {
  const counts: Record<string, number> = {}
  const sample_ids: Record<string, string[]> = {}
  for (const [index, { count, ids }] of measured.entries()) {
    const { label } = sets[index]
    if (count === 0 || label === null) continue
    counts[label] = (counts[label] ?? 0) + count
    sample_ids[label] = [...new Set([...(sample_ids[label] ?? []), ...ids])].slice(0, SAMPLE)
  }
  return { counts, sample_ids }
}

/** Rows that refer in several ways are counted once. A union, so that each way has its index. */
function united(levels: readonly Level[]): Level[] {
  const groups = Map.groupBy(levels, ({ kind, label, on_delete }) => `${kind.name} ${label} ${on_delete}`)
  return [...groups.values()].map(([first, ...others]) => {
    if (others.length === 0) return first
    const table = sql.identifier([first.kind.table])
    const ids = [first, ...others].map(({ where }) => sql.fragment`select id from ${table} where ${where}`)
    return { ...first, where: sql.fragment`id in (${sql.join(ids, sql.fragment` union all `)})` }
  })
}

/** What refers to a row, out of the `references` of every kind, in one statement. `held`: it keeps the row, save by force. */
async function dependentsOf(
  db: Queryable,
  target: Pick<Kind, 'name'>,
  id: string,
): Promise<Dependents & { held: boolean }> {
  const sets = united(levels(target.name, sql.fragment`select ${id}::text`))
  const measured = await measure(db, sets)
  const some = (...kinds: Level['on_delete'][]) =>
    sets.some(({ on_delete }, index) => kinds.includes(on_delete) && measured[index].count > 0)
  return { ...summed(sets, measured), forcible: !some('block'), held: some('block', 'force') }
}

/** Ids of the rows that a delete of a row by force would take along. */
export async function takenByForce(db: Queryable, target: Pick<Kind, 'name'>, id: string): Promise<string[]> {
  const going = levels(target.name, sql.fragment`select ${id}::text`).filter(
    ({ on_delete, stays }) => !stays && on_delete === 'force',
  )
  const ids: string[] = []
  for (const { kind, where } of going)
    ids.push(...(await db.anyFirst(idStatement`select id from ${sql.identifier([kind.table])} where ${where}`)))
  return ids
}

/**
 * Clears the way for the delete of a row whose lock the caller holds: raises `code` with
 * `meta { counts, sample_ids, forcible }` while something holds it; with `force`, deletes what may go with it, and in
 * any case what follows it, innermost first, each through its kind's `remove`. Rows that go are locked before they are
 * checked, so that nothing can come to refer to them in between.
 */
export async function refuseDependents(
  tx: Tx,
  target: Pick<Kind, 'name'>,
  id: string,
  { force, code }: { force: boolean; code: ErrorCode },
): Promise<void> {
  const going = levels(target.name, sql.fragment`select ${id}::text`).filter(
    ({ on_delete, stays }) => !stays && (on_delete === 'follow' || (force && on_delete === 'force')),
  )
  const taken: { kind: Kind; ids: readonly string[]; letGo: Reference['letGo'] }[] = []
  for (const { kind, where, letGo } of going) {
    const ids = await tx.anyFirst(
      idStatement`select id from ${sql.identifier([kind.table])} where ${where} order by id for update`,
    )
    taken.push({ kind, ids, letGo })
  }
  const { held, ...dependents } = await dependentsOf(tx, target, id)
  if (held && !(force && dependents.forcible))
    raise(code, {
      message: `The ${target.name.replaceAll('_', ' ')} ${id} is still referred to (${countsText(dependents.counts)})`,
      meta: dependents,
    })
  for (const { kind, ids, letGo } of taken.reverse())
    if (ids.length > 0) await (letGo ? letGo(tx, ids) : removeRows(tx, kind, ids))
}

async function removeRows(tx: Tx, kind: Kind, ids: readonly string[]): Promise<void> {
  if (kind.removeAll) return kind.removeAll(tx, ids)
  for (const id of ids) {
    const row = await kind.find(tx, id, true)
    if (row) await removeRow(tx, kind, row)
  }
}

/** Deletes a row whose lock the caller holds and to which nothing refers, with its event. */
export async function removeRow<Row extends KindRow>(tx: Tx, kind: Kind<Row, any>, row: Row): Promise<void> {
  if (kind.remove) return kind.remove(tx, row)
  await kind.delete(tx, row.id)
  if (kind.events.includes('deleted')) tx.emit(kind, 'deleted', row)
}

/** Rows of a project by kind: those that keep it from being deleted. */
export async function rowsOfProject(
  db: Queryable,
  projectId: string,
): Promise<Pick<Dependents, 'counts' | 'sample_ids'>> {
  const where = sql.fragment`project_id = ${projectId}`
  const sets = kinds.all().flatMap(kind => (kind.counted && !kind.global ? [{ kind, label: kind.plural, where }] : []))
  return summed(sets, await measure(db, sets))
}

/**
 * Locks the counted rows of a project against writers, in one statement. For its delete: a writer holds its row and then
 * wants the project (its event refers to it), so the rows have to be had before the project, or the two would meet
 * crosswise. Rows that come in between are left to the retry of the transaction.
 *
 * Rows that hold others by `block` come before these, for so their writers lock them: a document, then its file. What
 * goes by `force` or `follow` comes after what it goes with, as in refuseDependents.
 */
export async function lockRowsOfProject(tx: Tx, projectId: string): Promise<void> {
  const locked = kinds.all().filter(kind => kind.counted && !kind.global)
  const tables = new Set<string>()
  const take = (kind: Kind, above: readonly Kind[]): void => {
    const holds = ({ references }: Kind) =>
      references.some(reference => reference.kind === kind.name && reference.on_delete === 'block')
    for (const holder of locked) if (!above.includes(holder) && holds(holder)) take(holder, [...above, kind])
    tables.add(kind.table)
  }
  for (const kind of locked) take(kind, [])
  const counts = [...tables].map(
    table =>
      sql.fragment`(select count(*) from (
        select 1 from ${sql.identifier([table])} where project_id = ${projectId} for no key update) as held)`,
  )
  if (counts.length > 0) await tx.query(locking`select array[${sql.join(counts, sql.fragment`, `)}] as counts`)
}

/** One reference to a row: which row of which kind names it, and in which field. */
export type ReferenceEntry = { type: string; id: string; field: string }

/** Rows that name a row through the declared references, as a relation `type, id, field` to page over; null without any. */
export function referencesTo(target: Pick<Kind, 'name'>, id: string): Fragment | null {
  const parts = kinds.all().flatMap(kind =>
    kind.references
      .filter(reference => reference.kind === target.name)
      .map(
        reference => sql.fragment`select ${kind.name}::text as type, id,
            ${reference.field?.(sql.fragment`${id}::text`) ?? sql.fragment`${reference.column}::text`} as field
          from ${sql.identifier([kind.table])} where ${referenceCondition(reference, sql.fragment`select ${id}::text`)}`,
      ),
  )
  return parts.length === 0 ? null : sql.fragment`(${sql.join(parts, sql.fragment` union all `)})`
}
