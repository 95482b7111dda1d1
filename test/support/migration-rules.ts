import type pg from 'pg'
import { migrationStatements } from '#core/queues/breaking-migrations.ts'

/**
 * Statements that a migration without a transaction may have: they may be repeated, and their locks let other work read and write or
 * are short.
 */
const ONLINE =
  /^(create (unique )?index concurrently \w+ on|drop index concurrently|alter table (if exists )?\w+ (validate constraint|add column if not exists \w+ \w+$)|call partition_by_month\('\w+', '\w+'\)$)/

/** A breaking migration, and the release that stopped using the removed objects. */
const CONTRACT = /^-- breaking: true\n-- contract: \d+\.\d+\.\d+\n/

/** Objects of the schema with what processes of the release before rely on. A changed oid or file is another object. */
const OBJECTS = `
  select 'table ' || c.relname as object, null as owner, c.relfilenode::text as value
  from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind = 'r'
  union all
  select 'view ' || c.relname, null, null
  from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind = 'v'
  union all
  select 'column ' || c.relname || '.' || a.attname, c.relname, format_type(a.atttypid, a.atttypmod)
  from pg_class c join pg_attribute a on a.attrelid = c.oid
  where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'v') and a.attnum > 0 and not a.attisdropped
  union all
  select 'required column ' || c.relname || '.' || a.attname, c.relname, null
  from pg_class c join pg_attribute a on a.attrelid = c.oid
  where c.relnamespace = 'public'::regnamespace and c.relkind = 'r' and a.attnum > 0 and not a.attisdropped
    and a.attnotnull and not a.atthasdef and a.attidentity = ''
  union all
  select 'function ' || p.oid::regprocedure, null, format_type(p.prorettype, null)
  from pg_proc p where p.pronamespace = 'public'::regnamespace
  union all
  select 'index ' || i.indexrelid::regclass, i.indrelid::regclass::text, i.indexrelid::text
  from pg_index i join pg_class c on c.oid = i.indrelid where c.relnamespace = 'public'::regnamespace
  union all
  select 'constraint ' || c.relname || '.' || n.conname, c.relname, null
  from pg_constraint n join pg_class c on c.oid = n.conrelid
  where c.relnamespace = 'public'::regnamespace and n.contype in ('c', 'f') and n.convalidated`

type Schema = Map<string, { owner: string | null; value: string | null }>

async function read(client: pg.Client): Promise<Schema> {
  const { rows } = await client.query(OBJECTS)
  return new Map(rows.map(({ object, owner, value }) => [object, { owner, value }]))
}

const kindOf = (object: string): string => object.slice(0, object.lastIndexOf(' '))

/** Returns what processes of the release before miss, or wait for, in the second schema. */
function differences(before: Schema, after: Schema): string[] {
  const found: string[] = []
  for (const [object, { value }] of before) {
    const kind = kindOf(object)
    const isKept = after.has(object) || (kind === 'table' && after.has(object.replace('table', 'view')))
    if (['table', 'view', 'column', 'function'].includes(kind) && !isKept) found.push(`${object} is removed`)
    const now = after.get(object)
    if (!now || now.value === value) continue
    if (kind === 'table') found.push(`${object} is rewritten under a lock`)
    if (kind === 'column' || kind === 'function') found.push(`${object} changes from ${value} to ${now.value}`)
  }
  for (const [object, { owner, value }] of after) {
    const isOfOldTable = owner !== null && before.has(`table ${owner}`)
    if (!isOfOldTable || before.get(object)?.value === value) continue
    const kind = kindOf(object)
    if (kind === 'required column') found.push(`${object} has no default`)
    if (kind === 'index') found.push(`${object} of ${owner} is built under a lock`)
    if (kind === 'constraint') found.push(`${object} is checked under a lock`)
  }
  return found.toSorted()
}

/**
 * Runs a migration and returns its faults for running processes of the release before: an object of theirs is removed or
 * changed, a column is required that they do not write, or a lock is held for as long as a table is long. None for a
 * breaking migration that names the release which stopped using the removed objects.
 */
export async function migrationFaults(client: pg.Client, name: string, text: string): Promise<string[]> {
  const { statements, isTransactional } = migrationStatements(name, text)
  if (!isTransactional) {
    for (const statement of statements) await client.query(statement)
    return statements
      .filter(statement => !ONLINE.test(statement))
      .map(statement => `outside a transaction: ${statement}`)
  }
  if (text.startsWith('-- breaking: true') && !CONTRACT.test(text))
    return ['its second line must name the release that stopped using the removed objects: -- contract: 0.1.0']
  const before = await read(client)
  await client.query('begin')
  for (const statement of statements) await client.query(statement)
  await client.query('commit')
  const isContract = text.startsWith('-- breaking: true')
  return isContract ? [] : differences(before, await read(client))
}
