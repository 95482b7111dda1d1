import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import pg from 'pg'
import { MIGRATIONS, migrationNames } from '#core/queues/breaking-migrations.ts'
import { migrationFaults } from '../support/migration-rules.ts'
import { createDatabase, dropDatabase } from '../support/postgres.ts'

const RELEASED = Object.keys(
  JSON.parse(fs.readFileSync(path.join(import.meta.dirname, 'released-migrations.json'), 'utf8')),
)

/** Faults of migrations that are accepted, with the reason. */
const ACCEPTED: Record<string, { faults: string[]; reason: string }> = {
  '0014_memory_tags': {
    faults: ['index memories_tags of memories is built under a lock'],
    reason: 'it has the memories with tags only, and replaces one of all',
  },
  '0017_run_usage': {
    faults: ['index unfolded_usage_pkey of unfolded_usage is built under a lock'],
    reason: 'the table has the events of the last second',
  },
  '0019_watched_turns': {
    faults: ['cache_write_tokens', 'cached_tokens', 'input_tokens', 'output_tokens', 'quantity'].map(
      name => `required column folded_usage_rollups.unpriced_${name} has no default`,
    ),
    reason: 'functions of the schema alone write the table: a fold by an earlier one fails and is repeated',
  },
}

/** A table of the release before, and what depends on it. */
const EXISTING = `
  create table orders (id text primary key, total integer not null default 0, note text, state text default 'new');
  create index orders_note on orders (note);
  create view order_notes as select id, note from orders;
  create function order_total(id text) returns integer language sql as 'select 1'`

const FORBIDDEN: Record<string, string[]> = {
  'drop table orders cascade': [
    'column order_notes.id is removed',
    'column order_notes.note is removed',
    'column orders.id is removed',
    'column orders.note is removed',
    'column orders.state is removed',
    'column orders.total is removed',
    'table orders is removed',
    'view order_notes is removed',
  ],
  'alter table orders drop column total': ['column orders.total is removed'],
  'alter table orders rename total to sum': ['column orders.total is removed'],
  'alter table orders alter total type bigint': [
    'column orders.total changes from integer to bigint',
    'table orders is rewritten under a lock',
  ],
  'alter table orders add column customer text not null': ['required column orders.customer has no default'],
  'alter table orders alter total drop default': ['required column orders.total has no default'],
  'alter table orders alter note set not null': ['required column orders.note has no default'],
  'alter table orders add column made timestamptz default clock_timestamp()': [
    'table orders is rewritten under a lock',
  ],
  'create index orders_state on orders (state)': ['index orders_state of orders is built under a lock'],
  'alter table orders add constraint positive check (total >= 0)': [
    'constraint orders.positive is checked under a lock',
  ],
  'drop view order_notes': [
    'column order_notes.id is removed',
    'column order_notes.note is removed',
    'view order_notes is removed',
  ],
  'drop function order_total(text)': ['function order_total(text) is removed'],
}

const ALLOWED = [
  'alter table orders add column customer text',
  `alter table orders add column kind text not null default 'web'`,
  'create table invoices (id text primary key, order_id text references orders (id)); create index on invoices (order_id)',
  'alter table orders add constraint positive check (total >= 0) not valid',
  'drop index orders_note',
  'alter table orders rename to purchases; create view orders as select * from purchases',
  'create or replace function order_total(id text) returns integer language sql as $$select 2$$',
]

describe('migrations and the release before', function () {
  this.timeout(60_000)
  const name = `muster_test_rules_${process.pid}`
  let client: pg.Client
  beforeEach(async () => {
    client = new pg.Client({ connectionString: await createDatabase(name) })
    await client.connect()
  })
  afterEach(async () => {
    await client.end()
    await dropDatabase(name)
  })

  const faultsOf = (text: string) => migrationFaults(client, '9000_next', text)

  it('leave what its processes use, and hold no lock for as long as a table is long', async () => {
    const textOf = (each: string) => fs.readFileSync(path.join(MIGRATIONS, `${each}.sql`), 'utf8')
    for (const each of RELEASED) await client.query(textOf(each))
    const found: Record<string, string[]> = {}
    for (const each of migrationNames().filter(each => !RELEASED.includes(each))) {
      const faults = await migrationFaults(client, each, textOf(each))
      if (faults.length > 0) found[each] = faults
    }
    assert.deepEqual(found, Object.fromEntries(Object.entries(ACCEPTED).map(([each, { faults }]) => [each, faults])))
  })

  for (const [statement, faults] of Object.entries(FORBIDDEN))
    it(`must not ${statement}`, async () => {
      await client.query(EXISTING)
      assert.deepEqual(await faultsOf(`-- breaking: false\n${statement}`), faults)
    })

  for (const statement of ALLOWED)
    it(`may ${statement}`, async () => {
      await client.query(EXISTING)
      assert.deepEqual(await faultsOf(`-- breaking: false\n${statement}`), [])
    })

  it('remove it in a breaking migration only, which names the release that stopped using it', async () => {
    await client.query(EXISTING)
    await client.query('create table breaking_migrations (name text, release text)')
    const drop = 'alter table orders drop column note'
    const [fault] = await faultsOf(`-- breaking: true\n${drop} cascade`)
    assert.match(fault, /second line must name the release/)
    assert.deepEqual(await faultsOf(`-- breaking: true\n-- contract: 0.2.0\n${drop} cascade`), [])
  })

  it('build indexes and add optional columns outside a transaction, where nothing else may be done', async () => {
    await client.query(EXISTING)
    const header = '-- breaking: false, transaction: none\n'
    const online =
      'create index concurrently orders_state on orders (state);\ndrop index concurrently orders_note;\nalter table orders add column if not exists trace text;\n'
    assert.deepEqual(await faultsOf(header + online), [])
    assert.deepEqual(await faultsOf(`${header}update orders set note = null;`), [
      'outside a transaction: update orders set note = null',
    ])
    const required = 'alter table orders add column if not exists place text not null'
    assert.deepEqual(await faultsOf(`${header}${required} default 'x';`), [
      `outside a transaction: ${required} default 'x'`,
    ])
  })
})
