import { z } from 'zod'
import { type Queryable, sql } from '../db/sql.ts'
import { raise } from './errors.ts'
import { isIdOf, type Kind, kinds } from './kind.ts'

const id = sql.type(z.object({ id: z.string() }))

/**
 * Keeps rows of a project from being deleted until the transaction ends (FOR KEY SHARE). Raises the kind's `missing` code
 * for an id that names none.
 */
export async function reference(
  db: Queryable,
  target: Pick<Kind, 'prefix' | 'fixedIds' | 'table' | 'global' | 'missing'>,
  projectId: string | null,
  ids: readonly string[],
): Promise<void> {
  if (ids.length === 0) return
  const possible = ids.filter(id => isIdOf(target, id))
  const inProject = target.global ? sql.fragment`true` : sql.fragment`t.project_id = ${projectId}`
  const found =
    possible.length === 0
      ? []
      : await db.anyFirst(id`
          select t.id from ${sql.identifier([target.table])} t
          where t.id = any(${sql.array(possible, 'text')}) and ${inProject} for key share of t`)
  const missing = ids.find(each => !found.includes(each))
  if (missing !== undefined) raise(target.missing, { meta: { id: missing } })
}

/** The same for every reference that a kind declares, as far as the values of a row name them. */
export async function requireReferences(
  db: Queryable,
  kind: Pick<Kind, 'references'>,
  projectId: string | null,
  values: Record<string, unknown>,
): Promise<void> {
  for (const { kind: name, column } of kind.references) {
    const value = values[column]
    if (value === undefined || value === null || name === 'project') continue
    await reference(db, kinds.get(name), projectId, Array.isArray(value) ? value : [value as string])
  }
}
