import { type Fragment, sql } from '../../core/db/sql.ts'
import { extensionPoint } from '../../core/declarations.ts'

/**
 * What a module adds to the footprint of the project of an id, as selects of one value: the bytes it stores, and how many
 * of its rows searches read. Null counts as nothing.
 */
export type Footprint = (projectId: Fragment) => { bytes: Fragment; chunks?: Fragment }

/** What modules add to the footprint of projects. */
export const footprints = extensionPoint<Footprint>('footprints')

/** Sizes that callers declare may add up to more than any column or number holds; sums are cut off here. */
const LARGEST = Number.MAX_SAFE_INTEGER

/** A select of one row, the sums of all parts for a project: `bytes` and `chunk_count`. */
export function footprintOf(projectId: Fragment): Fragment {
  const measured = footprints.all().map(part => part(projectId))
  const sum = (terms: Fragment[]) =>
    terms.length === 0
      ? sql.fragment`0::int8`
      : sql.fragment`least(${sql.join(
          terms.map(term => sql.fragment`coalesce((${term}), 0)`),
          sql.fragment` + `,
        )}, ${LARGEST})::int8`
  return sql.fragment`select ${sum(measured.map(({ bytes }) => bytes))} as bytes,
    ${sum(measured.flatMap(({ chunks }) => chunks ?? []))} as chunk_count`
}
