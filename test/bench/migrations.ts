import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import pg from 'pg'
import { loadModules } from '#core/modules/module.ts'
import { MIGRATIONS, migrationNames } from '#core/queues/breaking-migrations.ts'
import { migrate } from '#core/queues/migrate.ts'
import { modules } from '#modules.ts'
import { createDatabase, dropDatabase } from '../support/postgres.ts'
import { amount, progress } from './fast.ts'
import { rounded } from './measure.ts'
import type { Row } from './rows.ts'

/**
 * The locks of the migrations since the release before, on a database of that release with many rows: how long each lock
 * that others wait for is held, and how long a writer of each table waits. Usage: npm run bench migrations [-- --fast]
 */
const GENERATIONS = amount(10_000_000, 200_000)

/** Rows of each large table that the migrations touch, as a share of the turns. */
const SHARES: Record<string, number> = {
  generations: 1,
  events: 0.3,
  usage_events: 0.3,
  memories: 0.1,
  orchestration_runs: 0.1,
  orchestration_node_executions: 0.1,
  conversations: 0.1,
  sessions: 0.1,
  trigger_firings: 0.1,
  eval_results: 0.1,
  task_dispatches: 0.1,
  ingestion_attempts: 0.1,
  webhooks: 0.01,
}

const SAMPLE_MS = 20
const BATCH = 500_000

/** Columns whose values a check or a trigger of the table restricts. */
const VALUES: Record<string, string> = {
  'usage_events.components': `'[]'`,
  'memories.tags': `'{}'`,
}

const RELEASED = Object.keys(
  JSON.parse(fs.readFileSync(path.join(import.meta.dirname, '../core/released-migrations.json'), 'utf8')),
)

/** Creates the schema of the release before. */
async function migrateToReleased(databaseUrl: string): Promise<void> {
  const directory = fs.mkdtempSync(path.join(tmpdir(), 'muster-bench-'))
  try {
    for (const name of RELEASED)
      fs.copyFileSync(path.join(MIGRATIONS, `${name}.sql`), path.join(directory, `${name}.sql`))
    await migrate(databaseUrl, { directory })
  } finally {
    fs.rmSync(directory, { recursive: true })
  }
}

/** Fills a table without its triggers, foreign keys and indexes, which are created afterwards. */
async function fill(db: pg.Client, table: string, rows: number): Promise<void> {
  const { rows: columns } = await db.query(
    `select attname as name, format_type(atttypid, null) as type from pg_attribute
     where attrelid = $1::regclass and attnum > 0 and not attisdropped and attnotnull and not atthasdef and attidentity = ''`,
    [table],
  )
  const { rows: checks } = await db.query(
    `select conname as name from pg_constraint where conrelid = $1::regclass and contype = 'c'`,
    [table],
  )
  const { rows: indexes } = await db.query(
    `select indexrelid::regclass::text as name, pg_get_indexdef(indexrelid) as text from pg_index
     where indrelid = $1::regclass and not exists (select from pg_constraint where conindid = indexrelid)`,
    [table],
  )
  for (const { name } of checks) await db.query(`alter table ${table} drop constraint ${name}`)
  for (const { name } of indexes) await db.query(`drop index ${name}`)
  const values = columns.map(({ name, type }) => VALUES[`${table}.${name}`] ?? placeholder(type))
  for (let from = 1; from <= rows; from += BATCH)
    await db.query(
      `insert into ${table} (${columns.map(({ name }) => `"${name}"`)})
       select ${values} from generate_series(${from}, ${Math.min(rows, from + BATCH - 1)}) n`,
    )
  for (const { text } of indexes) await db.query(text)
}

function placeholder(type: string): string {
  if (type === 'text') return `'filled_' || lpad(n::text, 20, '0')`
  if (type.startsWith('json')) return `'{}'`
  if (type.startsWith('timestamp')) return `now() - n * interval '1 second'`
  if (type === 'date') return 'current_date'
  if (type.endsWith('[]')) return `'{}'`
  if (type === 'boolean') return 'false'
  if (type === 'bytea') return `'\\x00'`
  if (type === 'uuid') return 'gen_random_uuid()'
  return '1'
}

type Held = { table: string; mode: string; query: string; ms: number }

/** Locks of migrations on filled tables that exclude writers, and how long they were seen. */
async function sampleLocks(databaseUrl: string, signal: AbortSignal): Promise<Held[]> {
  const db = new pg.Client({ connectionString: databaseUrl })
  await db.connect()
  const held = new Map<string, Held & { since: number }>()
  const ended: Held[] = []
  try {
    while (!signal.aborted) {
      const { rows } = await db.query(
        `select c.relname as table, l.mode, l.virtualtransaction as transaction, left(a.query, 100) as query
         from pg_locks l join pg_stat_activity a using (pid) join pg_class c on c.oid = l.relation
         where a.application_name = 'muster migrate' and l.granted and c.relkind = 'r' and c.relname = any($1)
           and l.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')`,
        [Object.keys(SHARES)],
      )
      const now = performance.now()
      const seen = new Set<string>()
      for (const { table, mode, transaction, query } of rows) {
        const key = `${transaction} ${table} ${mode}`
        seen.add(key)
        const known = held.get(key) ?? { table, mode, query, ms: 0, since: now }
        held.set(key, { ...known, query, ms: now - known.since + SAMPLE_MS })
      }
      for (const [key, lock] of held)
        if (!seen.has(key)) {
          ended.push(lock)
          held.delete(key)
        }
      await sleep(SAMPLE_MS)
    }
    return [...ended, ...held.values()]
  } finally {
    await db.end()
  }
}

/** Longest wait of a writer for a lock of a table, in milliseconds. */
async function probe(databaseUrl: string, table: string, signal: AbortSignal): Promise<number> {
  const db = new pg.Client({ connectionString: databaseUrl })
  await db.connect()
  let longest = 0
  try {
    while (!signal.aborted) {
      const started = performance.now()
      await db.query(`begin; lock table ${table} in row exclusive mode; rollback`)
      longest = Math.max(longest, performance.now() - started)
      await sleep(SAMPLE_MS)
    }
    return longest
  } finally {
    await db.end()
  }
}

export async function run(): Promise<Row[]> {
  loadModules(modules)
  const name = `muster_bench_migrations_${process.pid}`
  try {
    return await measure(await createDatabase(name))
  } finally {
    await dropDatabase(name)
  }
}

async function measure(databaseUrl: string): Promise<Row[]> {
  await migrateToReleased(databaseUrl)
  const db = new pg.Client({ connectionString: databaseUrl })
  await db.connect()
  await db.query(
    `set session_replication_role = replica; set synchronous_commit = off; set maintenance_work_mem = '512MB'`,
  )
  for (const [table, share] of Object.entries(SHARES)) {
    progress(`fill ${table} with ${GENERATIONS * share} rows`)
    await fill(db, table, GENERATIONS * share)
  }
  await db.end()
  const tables = Object.keys(SHARES)
  const ending = new AbortController()
  const sampling = sampleLocks(databaseUrl, ending.signal)
  const probing = tables.map(table => probe(databaseUrl, table, ending.signal))
  await sleep(500)
  progress('migrate')
  const started = performance.now()
  const names = await migrate(databaseUrl)
  const seconds = (performance.now() - started) / 1000
  ending.abort()
  const locks = (await sampling).toSorted((a, b) => b.ms - a.ms)
  const waits = await Promise.all(probing)
  for (const { table, mode, query, ms } of locks.slice(0, 8))
    progress(`${mode} of ${table} held for ${Math.round(ms)} ms: ${query.replaceAll(/\s+/g, ' ')}`)
  const count = migrationNames().length - RELEASED.length
  const heldOf = (of: readonly Held[]) => Math.round(Math.max(0, ...of.map(({ ms }) => ms)))
  return [
    {
      what: `${count} migrations with ${GENERATIONS} turns`,
      value: rounded(seconds),
      unit: 's',
      note: `${names[0]} to ${names.at(-1)}`,
    },
    ...tables.map((table, index) => ({
      what: `longest wait of a writer of ${table}`,
      value: Math.round(waits[index]),
      unit: 'ms',
      // A statement of a migration waits for a lock for a second, for example of autovacuum, and writers wait for that statement.
      target: '<= 1100',
      note: `${GENERATIONS * SHARES[table]} rows`,
    })),
    {
      what: 'longest lock of generations that excludes writers',
      value: heldOf(locks.filter(({ table }) => table === 'generations')),
      unit: 'ms',
      target: '< 1000',
    },
    {
      what: 'longest lock of any table that excludes writers',
      value: heldOf(locks),
      unit: 'ms',
      target: '< 1000',
      note: locks[0] ? `${locks[0].mode} of ${locks[0].table}` : '',
    },
  ]
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.table(await run())
  process.exit(0)
}
