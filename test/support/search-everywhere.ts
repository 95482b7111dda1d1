import { readdir, readFile } from 'node:fs/promises'
import path from 'node:path'
import { z } from 'zod'
import { type Queryable, rawQuery, sql } from '#core/db/sql.ts'
import { readEnvelope, StoredEnvelope, storedEnvelope } from '#core/writes/event-envelopes.ts'
import type { TestApp } from './app.ts'

const table = sql.type(z.object({ name: z.string() }))
const packed = sql.type(StoredEnvelope)

/**
 * Where a text is in the database and in the storage directory: every column of every table, the queue's too, bytes and
 * compressed envelopes included. Tables by name, also for a cell in a schema of the database, files by path.
 */
export async function placesOf(
  app: Pick<TestApp, 'inEachCell' | 'pool'>,
  text: string,
  directory?: string,
): Promise<string[]> {
  const cells = await app.inEachCell(({ pool }) => tablesWith(pool, text))
  const [home] = cells
  // Tables of queues have a schema at home, which a cell lacks.
  const nameAtHome = (name: string) => home.tables.find(each => each.split('.')[1] === name.split('.')[1]) ?? name
  const places = [...new Set(cells.flatMap(({ found }) => found.map(nameAtHome)))].sort()
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

/** Returns the tables of a cell, and those with a text. */
async function tablesWith(pool: Queryable, text: string): Promise<{ tables: readonly string[]; found: string[] }> {
  const tables = await pool.anyFirst(table`
    select format('%I.%I', table_schema, table_name) as name from information_schema.tables
    where table_type = 'BASE TABLE'
      and table_schema in (current_schema(), case current_schema() when 'public' then 'pgboss' end)
      and not (select relispartition from pg_class where oid = format('%I.%I', table_schema, table_name)::regclass) order by 1`)
  const found: string[] = []
  const hex = Buffer.from(text).toString('hex')
  for (const name of tables) {
    const query = `select from ${name} t where t::text like '%${text}%' or t::text like '%${hex}%' limit 1`
    if ((await pool.query(rawQuery(query))).rowCount > 0) found.push(name)
  }
  return { tables, found }
}
