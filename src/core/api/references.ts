import { raise } from '../base/errors.ts'
import { idStatement, type Queryable, sql } from '../db/sql.ts'
import { grantSourceOf } from './grants.ts'
import { inProject, isIdOf, type Kind, kinds } from './kind.ts'

/**
 * Protects the rows that the values of a row reference from deletion until the transaction ends. Raises the target's
 * `missing` code for an id not found in the project.
 */
export async function requireReferences(
  db: Queryable,
  kind: Pick<Kind, 'references'>,
  projectId: string | null,
  values: Record<string, unknown>,
): Promise<void> {
  for (const { kind: name, column, grantable } of kind.references) {
    const value = values[column]
    if (value === undefined || value === null || name === 'project') continue
    await requireAll(db, kinds.get(name), projectId, Array.isArray(value) ? value : [value as string], grantable)
  }
}

/**
 * Protects the rows with these ids from deletion until the transaction ends, in one statement. `grantable`: they may belong
 * to other projects that grant them. Raises the target's `missing` code for an id not found.
 */
export async function requireAll(
  db: Queryable,
  target: Kind<any, any>,
  projectId: string | null,
  ids: readonly string[],
  grantable = false,
): Promise<void> {
  const possible = ids.filter(id => isIdOf(target, id))
  const rows =
    possible.length === 0
      ? []
      : await db.anyFirst(idStatement`
          select t.id from ${sql.identifier([target.table])} t
          where t.id = any(${sql.array(possible, 'text')}) and ${inProject(target, projectId)} for key share of t`)
  const found = new Set(rows)
  const others = grantable && projectId !== null ? possible.filter(id => !found.has(id)) : []
  const granted =
    others.length > 0 ? await grantSourceOf(target.name)?.among(db, target.name, projectId as string, others) : []
  const reached = new Set(granted)
  const missing = ids.filter(id => !found.has(id) && !reached.has(id))
  if (missing.length > 0) raise(target.missing, { meta: { id: missing[0], missing } })
}
