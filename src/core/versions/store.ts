import type { z } from 'zod'
import { selectList } from '../api/kind.ts'
import { pageResult } from '../api/lists.ts'
import type { Page } from '../api/operation.ts'
import { type Fragment, type Queryable, sql } from '../db/sql.ts'
import { noVersion } from './version.ts'

/**
 * Returns the reads of a table of immutable versions, which has a unique index on owner and version.
 * @param at.owner column with the id of the versioned row
 * @param at.key unique column that a page is cut by; default none
 * @param at.bytes size of the large columns; default pages have no size limit
 */
export function versionStore<Version extends object>(at: {
  table: string
  owner: string
  record: z.ZodObject
  key?: Fragment
  bytes?: Fragment
}) {
  const { record, key, bytes } = at
  const table = sql.identifier([at.table])
  const columns = selectList(Object.keys(record.shape))
  const typed = sql.type(record)
  const ownedBy = (id: string) => sql.fragment`${sql.identifier(['t', at.owner])} = ${id}`

  /** Returns the existing versions among the given numbers, which may exceed the range of the column. */
  const find = (db: Queryable, id: string, numbers: readonly number[]): Promise<readonly Version[]> =>
    db.any(typed`
      select ${columns} from ${table} t
      where ${ownedBy(id)} and t.version = any(${sql.array([...numbers], 'int8')})`) as never

  return {
    table,
    record,
    ownedBy,
    find,

    /** Returns a version. Raises RESOURCE_NOT_FOUND if it does not exist. */
    async get(db: Queryable, id: string, number: number): Promise<Version> {
      const [found] = await find(db, id, [number])
      return found ?? noVersion(id, number)
    },

    /** Returns a page of versions, newest first; the unique index serves filter and order. */
    list: (db: Queryable, page: Page, id: string, label?: string) =>
      pageResult<Version>(
        { db, page },
        {
          columns,
          from: sql.fragment`${table} t`,
          rows: ownedBy(id),
          filters: [label !== undefined && sql.fragment`t.label = ${label}`],
          time: sql.fragment`t.created_at`,
          order: sql.fragment`t.version desc`,
          key,
          bytes,
          present: found => found,
        },
      ),
  }
}
