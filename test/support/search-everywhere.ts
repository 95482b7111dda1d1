import { readdir, readFile } from 'node:fs/promises'
import path from 'node:path'
import { z } from 'zod'
import { rawQuery, sql } from '#core/db/sql.ts'
import { readEnvelope, StoredEnvelope, storedEnvelope } from '#core/writes/event-envelopes.ts'
import type { TestApp } from './app.ts'
import { CELL_SCHEMA } from './postgres.ts'

const table = sql.type(z.object({ name: z.string() }))
const packed = sql.type(StoredEnvelope)

/**
 * Where a text is in the database and in the storage directory: every column of every table, the queue's too, bytes and
 * compressed envelopes included. Tables by name, also for a cell in a schema of the database, files by path.
 */
export async function placesOf(
  app: Pick<TestApp, 'services' | 'pool'>,
  text: string,
  directory?: string,
): Promise<string[]> {
  const { pool } = app
  const tables = await pool.anyFirst(table`
    select format('%I.%I', table_schema, table_name) as name from information_schema.tables
    where table_type = 'BASE TABLE' and table_schema not in ('pg_catalog', 'information_schema')
      and not (select relispartition from pg_class where oid = format('%I.%I', table_schema, table_name)::regclass) order by 1`)
  const found = new Set<string>()
  const hex = Buffer.from(text).toString('hex')
  for (const name of tables) {
    const query = `select from ${name} t where t::text like '%${text}%' or t::text like '%${hex}%' limit 1`
    if ((await pool.query(rawQuery(query))).rowCount > 0) found.add(tableOfHome(name, tables))
  }
  const places = [...found].sort()
  const events = await app.pool.any(packed`select ${storedEnvelope} from events where packed is not null`)
  if (events.some(row => readEnvelope(row).includes(text))) places.push('public.events (compressed)')
  if (directory) {
    const entries = await readdir(directory, { recursive: true, withFileTypes: true })
    for (const entry of entries.filter(each => each.isFile())) {
      const file = path.join(entry.parentPath, entry.name)
      if ((await readFile(file)).includes(text)) places.push(file)
    }
  }
  return places
}

/** Returns the name that a table of a cell has at home, where tables of queues have a schema. */
function tableOfHome(name: string, tables: readonly string[]): string {
  const [schema, table] = name.split('.')
  if (schema !== CELL_SCHEMA) return name
  return tables.includes(`public.${table}`) ? `public.${table}` : `pgboss.${table}`
}
