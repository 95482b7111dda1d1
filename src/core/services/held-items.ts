import { LRUCache } from 'lru-cache'
import { processSingleton } from '../base/process-singleton.ts'
import type { Services } from '../base/services.ts'
import { rawQuery } from '../db/sql.ts'
import { withoutTenant } from '../db/tenant-context.ts'

/** Queries for items by their IDs and tokens, for IDs whose number does not say in which cell they are. */

const TABLES = `
  select c.relname::text as name, exists (
    select from pg_attribute p where p.attrelid = c.oid and p.attname = 'project_id' and not p.attisdropped) as has_project
  from pg_class c join pg_index i on i.indrelid = c.oid and i.indisprimary and i.indnkeyatts = 1
  join pg_attribute a on a.attrelid = c.oid and a.attnum = i.indkey[0]
  where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
    and a.attname = 'id' and a.atttypid = 'text'::regtype
  order by 1`

type Table = { name: string; has_project: boolean }

const tablesOf = processSingleton(({ pool }: Services) => {
  let tables: Promise<readonly Table[]> | undefined
  return () => {
    tables ??= (pool.any(rawQuery(TABLES)) as Promise<readonly Table[]>).catch(error => {
      tables = undefined
      throw error
    })
    return tables
  }
})

/** Tables of IDs by their prefixes, of found items. */
const tableByPrefix = new LRUCache<string, Table>({ max: 1000 })

type Found = { name: string; project: string | null }

const TOKENS = `
  select project_id as project from upload_tokens where token_hash = sha256(convert_to($1, 'UTF8'))
  union all
  select project_id from orchestration_node_executions where callback_hash = encode(sha256(convert_to($1, 'UTF8')), 'hex')`

/** Queries of prefixes whose table is not known read all tables: one at a time, as callers without rights may cause them. */
const inTurn = processSingleton(() => {
  let last: Promise<unknown> = Promise.resolve()
  return <T>(work: () => Promise<T>): Promise<T> => {
    const result = last.then(work)
    last = result.catch(() => {})
    return result
  }
})

/** Returns the project of an item of a cell, null for an item without one; undefined if the cell does not have it. */
export const findItem = (services: Services, id: string): Promise<string | null | undefined> =>
  withoutTenant(async () => {
    const prefix = id.slice(0, id.lastIndexOf('_'))
    const known = tableByPrefix.get(prefix)
    if (known) return (await findIn(services, [known], id))?.project
    const tables = await tablesOf(services)()
    const found = await inTurn(services)(() => findIn(services, tables, id))
    const table = tables.find(({ name }) => name === found?.name)
    if (table) tableByPrefix.set(prefix, table)
    return found?.project
  })

async function findIn({ pool }: Services, tables: readonly Table[], id: string): Promise<Found | undefined> {
  const parts = tables.map(
    ({ name, has_project }) =>
      `select '${name}' as name, ${has_project ? 'project_id' : 'null'} as project from "${name}" where id = $1`,
  )
  const [found] = (await pool.any(rawQuery(parts.join(' union all '), [id]))) as readonly Found[]
  return found
}

/** Like `findItem`, for a token in a path. */
export const findToken = (services: Services, token: string): Promise<string | null | undefined> =>
  withoutTenant(async () => {
    const [found] = (await services.pool.any(rawQuery(TOKENS, [token]))) as readonly Pick<Found, 'project'>[]
    return found?.project
  })
