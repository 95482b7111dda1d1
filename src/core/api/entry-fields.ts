import { z } from 'zod'
import { type Fragment, sql } from '../db/sql.ts'
import { listTargetOf, visibleRows } from './access.ts'
import { kinds, toPascalCase } from './kind.ts'
import { type Context, operations } from './operation.ts'

type Reader = Pick<Context, 'caller' | 'project'>

/** Fields of the entries of a list that its record does not have. A list selects them for the rows of a page only. */
export type EntryFields = {
  shape: z.ZodRawShape
  /** Expression over the row `t` of one jsonb object; a field that it lacks is null. */
  select(reader: Reader): Fragment
}

/** The records that the entries of a list name: by kind, the shown columns. */
type Named = Readonly<
  Record<
    string,
    {
      columns: readonly string[]
      /** Expression for the ID over the row `t`. Default: the column `<kind>_id`. */
      id?: () => Fragment
    }
  >
>

/**
 * Returns the columns of records that rows refer to as fields `<kind>_<column>`, so that a list needs no request for each
 * row. A caller sees the columns of records of the project that it may get. By the primary keys.
 */
export function namesOf(named: Named): EntryFields {
  const entries = Object.entries(named)
  const describe = (kind: string, column: string) =>
    z.string().nullable().describe(`\`${column}\` of the ${kind}. Null without permission to get it.`)
  return {
    shape: Object.fromEntries(
      entries.flatMap(([kind, { columns }]) =>
        columns.map(column => [`${kind}_${column}`, describe(kind, column)] as const),
      ),
    ),
    select: reader => {
      const names = entries.map(
        ([kind, { columns, id = () => sql.fragment`${sql.identifier(['t', `${kind}_id`])}` }]) =>
          namesExpression(reader, kind, columns, { id: id(), project: sql.fragment`t.project_id` }),
      )
      return sql.fragment`${sql.join(names, sql.fragment` || `)}`
    },
  }
}

/** Expression for the columns `<kind>_<column>` of one record as jsonb; empty unless the caller may get it. */
export function namesExpression(
  { caller, project }: Reader,
  kindName: string,
  columns: readonly string[],
  of: { id: Fragment; project: Fragment },
): Fragment {
  if (caller.end_user) return sql.fragment`'{}'::jsonb`
  const kind = kinds.get(kindName)
  const action = operations.get(`get${toPascalCase(kindName)}`).action as string
  const { rows } = visibleRows(
    caller,
    { ...listTargetOf(kind), action, project },
    {
      project: sql.fragment`n.project_id`,
      id: sql.fragment`n.id`,
      ...(kind.tags ? { tags: sql.fragment`n.tags` } : {}),
    },
  )
  const fields = columns.map(column => sql.fragment`${`${kindName}_${column}`}::text, ${sql.identifier(['n', column])}`)
  return sql.fragment`coalesce((
    select jsonb_build_object(${sql.join(fields, sql.fragment`, `)}) from ${sql.identifier([kind.table])} n
    where n.id = ${of.id} and n.project_id = ${of.project} and ${rows}), '{}')`
}
