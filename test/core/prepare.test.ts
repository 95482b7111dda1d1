import assert from 'node:assert/strict'
import { inTransaction, openPool, type Pool } from '#core/db/pool.ts'
import { sql } from '#core/db/sql.ts'
import { createDatabase, dropDatabase } from '../support/postgres.ts'

describe('statements that repeat', () => {
  let databaseUrl: string
  let pool: Pool

  before(async () => {
    databaseUrl = await createDatabase()
    pool = await openPool({ databaseUrl, connections: 3 })
    await pool.query(sql.unsafe`create table things (id int primary key, word text)`)
    await pool.query(sql.unsafe`insert into things select n, 'w' || n from generate_series(1, 50) n`)
  })
  after(async () => {
    await pool.end()
    await dropDatabase(new URL(databaseUrl).pathname.slice(1))
  })

  const read = (id: number) => pool.one(sql.unsafe`select * from things where id = ${id}`)
  const prepared = () => pool.any(sql.unsafe`select name, statement from pg_prepared_statements order by name`)

  it('are prepared after repeated execution, rare ones are not', async () => {
    for (let n = 1; n <= 30; n++) assert.equal(((await read(n)) as { word: string }).word, `w${n}`)
    await pool.one(sql.unsafe`select count(*) from things where id = ${1}`)
    const statements = (await prepared()) as { name: string; statement: string }[]
    assert.equal(statements.length, 1)
    assert.ok(statements[0].statement.includes('select * from things'))
  })

  it('survive a schema change, outside and inside of transactions', async () => {
    const inside = (id: number) =>
      inTransaction(pool, connection => connection.one(sql.unsafe`select * from things where id = ${id} for update`))
    for (let n = 1; n <= 30; n++) await inside(n)
    await pool.query(sql.unsafe`alter table things add column more int default 7`)
    const alone = await Promise.all(Array.from({ length: 9 }, (_, n) => read(n + 1)))
    assert.ok(alone.every(row => (row as { more: number }).more === 7))
    await pool.query(sql.unsafe`alter table things add column again int default 8`)
    for (let n = 1; n <= 9; n++) assert.equal(((await inside(n)) as { again: number }).again, 8)
  })

  it('never exceed the maximum number', async () => {
    for (let text = 0; text < 130; text++) {
      for (let n = 0; n < 11; n++) await pool.query(sql.unsafe`select ${sql.literalValue(String(text))}`)
    }
    assert.ok(((await prepared()) as unknown[]).length <= 100)
  })
})
