import { extensionPoint } from '#core/base/declarations.ts'
import { type Fragment, sql } from '#core/db/sql.ts'

/**
 * Returns selects of one value for the part of a module in the footprint of a project: its stored bytes and the number
 * of its rows that searches read. Null counts as zero.
 */
export type Footprint = (projectId: Fragment) => { bytes: Fragment; chunks?: Fragment }

export const footprints = extensionPoint<Footprint>({
  name: 'footprints',
  folder: 'control/storage',
  description: 'Gives the SQL of the bytes and rows that a project stores in a module',
})

/** Upper bound of sums: sizes declared by callers may add up to more than an int8 holds. */
const MAX_SUM = Number.MAX_SAFE_INTEGER

/** Returns a select of one row with the `bytes` and `chunk_count` of a project, summed over all modules. */
export function footprintOf(projectId: Fragment): Fragment {
  const measured = footprints.all().map(part => part(projectId))
  const sum = (terms: Fragment[]) =>
    terms.length === 0
      ? sql.fragment`0::int8`
      : sql.fragment`least(${sql.join(
          terms.map(term => sql.fragment`coalesce((${term}), 0)`),
          sql.fragment` + `,
        )}, ${MAX_SUM})::int8`
  return sql.fragment`select ${sum(measured.map(({ bytes }) => bytes))} as bytes,
    ${sum(measured.flatMap(({ chunks }) => chunks ?? []))} as chunk_count`
}
