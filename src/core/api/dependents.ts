import { z } from 'zod'
import { type Extension, extensionPoint } from '../base/declarations.ts'
import { countsText, type ErrorCode, raise } from '../base/errors.ts'
import type { Services } from '../base/services.ts'
import { allOf, type Fragment, idStatement, type Queryable, sql } from '../db/sql.ts'
import type { Tx } from '../writes/writer.ts'
import { type Kind, type KindRow, kinds, type Reference } from './kind.ts'

/** Rows that prevent a delete, mostly by plural kind name; kinds without such rows are absent. */
export type Dependents = {
  counts: Record<string, number>
  /** At most 5 ids per kind, newest first. */
  sample_ids: Record<string, string[]>
  /** Whether `force` deletes all of them. */
  forcible: boolean
}

/** Rows of one kind that reference the target, directly or through rows deleted together with it. */
type Level = {
  kind: Kind
  /** Null if the rows are not counted. */
  label: string | null
  on_delete: 'block' | 'force' | 'follow'
  where: Fragment
  detach: Reference['detach']
  stays: boolean
}

const SAMPLE = 5

/** Returns the condition that a row references one of the ids of a subquery. */
export function referenceCondition({ column, many, condition, where, among }: Reference, ids: Fragment): Fragment {
  const named = condition
    ? condition(ids)
    : many
      ? sql.fragment`${sql.identifier([column])} && array(${ids})`
      : sql.fragment`${sql.identifier([column])} in (${ids})`
  return allOf([named, where, among && sql.fragment`id in (${among(ids)})`])
}

/** Returns the condition that a row prevents the delete of its target: grantable references only within one project. */
function dependencyCondition(reference: Reference, ids: Fragment): Fragment {
  if (!reference.grantable) return referenceCondition(reference, ids)
  const target = sql.identifier([kinds.get(reference.kind).table])
  return sql.fragment`${referenceCondition(reference, ids)} and project_id in (select o.project_id from ${target} o where o.id in (${ids}))`
}

/**
 * Returns the declared references to `target`, each followed by the references to the rows that are deleted with it.
 * Terminates because a kind is followed once per path.
 */
function listLevels(target: string, id: Fragment, path: readonly string[] = []): Level[] {
  const found: Level[] = []
  for (const kind of kinds.all()) {
    for (const reference of kind.references) {
      const { on_delete, detach, stays = false } = reference
      if (reference.kind !== target || on_delete === 'cascade' || on_delete === 'null') continue
      const where = dependencyCondition(reference, id)
      const label = reference.counted === undefined ? kind.plural : reference.counted
      found.push({ kind, label, on_delete, where, detach, stays })
      if (on_delete !== 'block' && !detach && !stays && !path.includes(kind.name)) {
        const ids = sql.fragment`select id from ${sql.identifier([kind.table])} where ${where}`
        found.push(...listLevels(kind.name, ids, [...path, kind.name]))
      }
    }
  }
  return found
}

const MeasuredSet = z.strictObject({ count: z.int(), ids: z.array(z.string()) })
type Measured = z.output<typeof MeasuredSet>
const measured = sql.type(MeasuredSet)

const locking = sql.type(z.strictObject({ counts: z.array(z.int()) }))

/** Returns the count and sample ids of sets of rows, in their order, in one statement. */
async function measure(db: Queryable, sets: readonly { kind: Kind; where: Fragment }[]): Promise<readonly Measured[]> {
  if (sets.length === 0) return []
  const parts = sets.map(({ kind, where }, index) => {
    const table = sql.identifier([kind.table])
    return sql.fragment`select ${index}::int as index, (select count(*) from ${table} where ${where}) as count,
      array(select id from ${table} where ${where} order by id desc limit ${SAMPLE}) as ids`
  })
  return db.any(measured`select count, ids from (${sql.join(parts, sql.fragment` union all `)}) as sets order by index`)
}

/** Adds up counts and samples by label. */
function sumByLabel(sets: readonly { label: string | null }[], measured: readonly Measured[]) {
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

/** Merges levels of the same rows, so that each row counts once. A union lets each reference use its own index. */
function mergeLevels(levels: readonly Level[]): Level[] {
  const groups = Map.groupBy(levels, ({ kind, label, on_delete }) => `${kind.name} ${label} ${on_delete}`)
  return [...groups.values()].map(([first, ...others]) => {
    if (others.length === 0) return first
    const table = sql.identifier([first.kind.table])
    const ids = [first, ...others].map(({ where }) => sql.fragment`select id from ${table} where ${where}`)
    return { ...first, where: sql.fragment`id in (${sql.join(ids, sql.fragment` union all `)})` }
  })
}

/** Returns the rows that reference a row, in one statement. `isBlocked`: they prevent its delete unless forced. */
async function findDependents(
  db: Queryable,
  target: Pick<Kind, 'name'>,
  id: string,
): Promise<Dependents & { isBlocked: boolean }> {
  const sets = mergeLevels(listLevels(target.name, sql.fragment`select ${id}::text`))
  const measured = await measure(db, sets)
  const some = (...kinds: Level['on_delete'][]) =>
    sets.some(({ on_delete }, index) => kinds.includes(on_delete) && measured[index].count > 0)
  return { ...sumByLabel(sets, measured), forcible: !some('block'), isBlocked: some('block', 'force') }
}

/** Returns the ids of the rows that a forced delete of a row would also delete. */
export async function listForceDeleted(db: Queryable, target: Pick<Kind, 'name'>, id: string): Promise<string[]> {
  const deletable = listLevels(target.name, sql.fragment`select ${id}::text`).filter(
    ({ on_delete, stays }) => !stays && on_delete === 'force',
  )
  const ids: string[] = []
  for (const { kind, where } of deletable)
    ids.push(...(await db.anyFirst(idStatement`select id from ${sql.identifier([kind.table])} where ${where}`)))
  return ids
}

/**
 * Prepares the delete of a row locked by the caller. Raises `code` with `meta { counts, sample_ids, forcible }` if other
 * rows prevent it. Deletes the `follow` rows, with `force` also the `force` rows, innermost first, each through its kind's
 * `remove`. These rows are locked before the check, so that no reference to them can be added in between.
 */
export async function refuseDependents(
  tx: Tx,
  target: Pick<Kind, 'name'>,
  id: string,
  { force, code }: { force: boolean; code: ErrorCode },
): Promise<void> {
  const deletable = listLevels(target.name, sql.fragment`select ${id}::text`).filter(
    ({ on_delete, stays }) => !stays && (on_delete === 'follow' || (force && on_delete === 'force')),
  )
  const locked: { kind: Kind; ids: readonly string[]; detach: Reference['detach'] }[] = []
  for (const { kind, where, detach } of deletable) {
    const ids = await tx.anyFirst(
      idStatement`select id from ${sql.identifier([kind.table])} where ${where} order by id for update`,
    )
    locked.push({ kind, ids, detach })
  }
  const { isBlocked, ...dependents } = await findDependents(tx, target, id)
  if (isBlocked && !(force && dependents.forcible))
    raise(code, {
      message: `The ${target.name.replaceAll('_', ' ')} ${id} is still referenced (${countsText(dependents.counts)})`,
      meta: dependents,
    })
  for (const { kind, ids, detach } of locked.reverse())
    if (ids.length > 0) await (detach ? detach(tx, ids) : removeRows(tx, kind, ids))
}

async function removeRows(tx: Tx, kind: Kind, ids: readonly string[]): Promise<void> {
  if (kind.removeAll) return kind.removeAll(tx, ids)
  for (const id of ids) {
    const row = await kind.find(tx, id, true)
    if (row) await removeRow(tx, kind, row)
  }
}

const deleteHooks = extensionPoint<{ kind: string; run: (tx: Tx, row: any, services: Services) => Promise<void> }>({
  name: 'delete hooks',
  folder: 'core/api',
  description: 'Refuses the delete operation of a kind, or deletes what a later module has of the row',
})

/** Registers a hook of the delete operation of a kind, called in its transaction, after the row is locked. */
export const onDelete = <Row extends KindRow>(
  kind: Kind<Row, any>,
  run: (tx: Tx, row: Row, services: Services) => Promise<void>,
): Extension => deleteHooks.with({ kind: kind.name, run })

/** Runs the hooks of later modules for a row that the delete operation of its kind has locked. */
export async function runDeleteHooks<Row extends KindRow>(
  tx: Tx,
  services: Services,
  kind: Kind<Row, any>,
  row: Row,
): Promise<void> {
  for (const hook of deleteHooks.all()) if (hook.kind === kind.name) await hook.run(tx, row, services)
}

/** Deletes a row that is locked by the caller and not referenced, and emits its event. */
export async function removeRow<Row extends KindRow>(tx: Tx, kind: Kind<Row, any>, row: Row): Promise<void> {
  if (kind.remove) return kind.remove(tx, row)
  await kind.delete(tx, row.id)
  if (kind.events.includes('deleted')) tx.emit(kind, 'deleted', row)
}

/** Returns the rows that prevent the delete of a project, by kind. */
export async function rowsOfProject(
  db: Queryable,
  projectId: string,
): Promise<Pick<Dependents, 'counts' | 'sample_ids'>> {
  const where = sql.fragment`project_id = ${projectId}`
  const sets = kinds.all().flatMap(kind => (kind.counted && !kind.global ? [{ kind, label: kind.plural, where }] : []))
  return sumByLabel(sets, await measure(db, sets))
}

/**
 * Locks the counted rows of a project against writers, in one statement, before its delete. A writer locks its row first
 * and then the project, which its event references; locking the rows before the project prevents a deadlock. Rows inserted
 * in between are covered by the retry of the transaction.
 *
 * Lock order, the same as for writers: rows that `block` others before these (a document, then its file); `force` and
 * `follow` rows after the rows they are deleted with, as in refuseDependents.
 */
export async function lockRowsOfProject(tx: Tx, projectId: string): Promise<void> {
  const locked = kinds.all().filter(kind => kind.counted && !kind.global)
  const tables = new Set<string>()
  const addTables = (kind: Kind, path: readonly Kind[]): void => {
    const blocks = ({ references }: Kind) =>
      references.some(reference => reference.kind === kind.name && reference.on_delete === 'block')
    for (const other of locked) if (!path.includes(other) && blocks(other)) addTables(other, [...path, kind])
    tables.add(kind.table)
  }
  for (const kind of locked) addTables(kind, [])
  const counts = [...tables].map(
    table =>
      sql.fragment`(select count(*) from (
        select 1 from ${sql.identifier([table])} where project_id = ${projectId} for no key update) as held)`,
  )
  if (counts.length > 0) await tx.query(locking`select array[${sql.join(counts, sql.fragment`, `)}] as counts`)
}

/** A reference to a row: kind, id and field of the referencing row. */
export type ReferenceEntry = { type: string; id: string; field: string }

/**
 * Returns the rows that reference a row through the declared references, as a relation `type, id, field` for paging. Null
 * if no kind references it.
 */
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
