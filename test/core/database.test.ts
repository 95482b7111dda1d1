import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import pg from 'pg'
import { cloneTemplate } from '../support/postgres.ts'

const root = path.resolve(import.meta.dirname, '../..')
const page = readFileSync(path.join(root, 'docs/database.md'), 'utf8')

/** Cells of the table below a heading, or of the first table of the page. */
const tableOf = (heading: string): string[][] =>
  `\n${page}`
    .split(`\n${heading}\n`)[1]!
    .split('\n## ')[0]!
    .split('\n')
    .filter(line => line.startsWith('| `'))
    .map(line => line.slice(2, -2).split(' | '))
const names = (cell: string) => [...cell.matchAll(/`([^`]+)`/g)].map(([, name]) => name!)

describe('docs/database.md', () => {
  let database: Awaited<ReturnType<typeof cloneTemplate>>
  let client: pg.Client
  before(async () => {
    database = await cloneTemplate()
    client = new pg.Client({ connectionString: database.url })
    await client.connect()
  })
  after(async () => {
    await client.end()
    await database.drop()
  })

  const inCatalogue = async (query: string) => (await client.query(query)).rows.map(({ name }) => name).sort()

  it('lists the files of sql/', () => {
    assert.deepEqual(
      tableOf('# Database').flatMap(([file]) => names(file!)),
      readdirSync(path.join(root, 'sql')).sort(),
    )
  })

  it('lists every function with its rule', async () => {
    const functions = tableOf('## Functions')
    assert.deepEqual(
      functions.flatMap(([name]) => names(name!)),
      await inCatalogue(`select distinct proname as name from pg_proc where pronamespace = 'public'::regnamespace`),
    )
    for (const [name, rule] of functions) assert.ok(rule, name)
  })

  it('lists every trigger with its tables and its rule', async () => {
    const triggers = tableOf('## Triggers')
    const tables = new Map(triggers.map(([trigger, cell]) => [names(trigger!)[0], names(cell!)]))
    const listed = triggers.flatMap(([trigger, cell]) => {
      const [name] = names(trigger!)
      const [, like] = /^as `(\w+)`$/.exec(cell!) ?? []
      return tables.get(like ?? name)!.map(table => `${table} ${name}`)
    })
    assert.deepEqual(
      listed.sort(),
      await inCatalogue(
        `select tgrelid::regclass || ' ' || tgname as name from pg_trigger
         where not tgisinternal and tgrelid::regclass::text !~ '[.]'
           and not (select relispartition from pg_class where oid = tgrelid)`,
      ),
    )
    for (const [name, , rule] of triggers) assert.ok(rule, name)
  })

  it('lists every index of turns with the queries that need it', async () => {
    const indexes = tableOf('## Indexes of generations')
    assert.deepEqual(
      indexes.flatMap(([index]) => names(index!)).sort(),
      await inCatalogue(
        `select indexname as name from pg_indexes where schemaname = 'public' and tablename = 'generations'`,
      ),
    )
    for (const [index, writers, queries] of indexes) assert.ok(writers && queries, index)
  })
})
