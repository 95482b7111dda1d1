import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { inTransaction, onSeparateConnection, openPool, type Pool } from '#core/db/pool.ts'
import { sql } from '#core/db/sql.ts'
import { createDatabase, dropDatabase } from '../support/postgres.ts'

describe('a second connection where one is held', () => {
  let databaseUrl: string
  let pool: Pool
  const one = (from = pool) => from.oneFirst(sql.unsafe`select 1 as the_statement`)

  before(async () => {
    databaseUrl = await createDatabase()
    pool = await openPool({ databaseUrl, connections: 3, strict: true })
  })
  after(async () => {
    await pool.end()
    await dropDatabase(new URL(databaseUrl).pathname.slice(1))
  })

  const asks: Record<string, [ask: () => Promise<unknown>, named: RegExp]> = {
    'a statement': [() => one(), /select 1 as the_statement/],
    connect: [() => pool.connect(one as never), /connect or transaction/],
    transaction: [() => pool.transaction(one as never), /connect or transaction/],
    'a transaction of ours': [() => inTransaction(pool, one as never), /connect or transaction/],
  }
  const holds: Record<string, (work: () => Promise<unknown>) => Promise<unknown>> = {
    'a transaction of ours': work => inTransaction(pool, work),
    transaction: work => pool.transaction(work),
    connect: work => pool.connect(work),
  }
  for (const [holder, hold] of Object.entries(holds))
    for (const [name, [ask, named]] of Object.entries(asks))
      it(`is refused: ${name} inside ${holder}`, async () => {
        await assert.rejects(hold(ask), (error: Error) => {
          assert.equal(error.constructor, Error)
          assert.match(error.message, named)
          return true
        })
        assert.equal(await one(), 1)
      })

  it('is refused however deep in the work of the transaction', async () => {
    const later = async () => {
      await sleep(1)
      return (await Promise.all([sleep(1).then(() => one())]))[0]
    }
    await assert.rejects(inTransaction(pool, later), /the_statement/)
  })

  it('is not what statements of the transaction take', async () => {
    assert.equal(await inTransaction(pool, tx => one(tx as unknown as Pool)), 1)
  })

  for (const end of ['committed', 'rolled back'])
    it(`is not what work takes that outlives the transaction it was started in: ${end}`, async () => {
      let started: Promise<unknown> = Promise.resolve()
      let over = () => {}
      const gate = new Promise<void>(resolve => {
        over = resolve
      })
      const work = inTransaction(pool, async () => {
        started = gate.then(() => one())
        if (end === 'rolled back') throw new Error(end)
      })
      if (end === 'rolled back') await assert.rejects(work, /rolled back/)
      else await work
      over()
      assert.equal(await started, 1)
    })

  it('is given to work that is started outside of the transaction on purpose', async () => {
    let started: Promise<unknown> = Promise.resolve()
    await inTransaction(pool, async tx => {
      started = onSeparateConnection(() => one())
      await assert.rejects(one(), /the_statement/)
      assert.equal(await one(tx as unknown as Pool), 1)
    })
    assert.equal(await started, 1)
  })

  it('is given where the pool is not strict', async () => {
    const lax = await openPool({ databaseUrl, connections: 2 })
    try {
      assert.equal(await inTransaction(lax, () => one(lax)), 1)
    } finally {
      await lax.end()
    }
  })
})

describe('what a statement answers', () => {
  // 100 rows of 5 KB a statement, in a process that collects its young heap alone.
  const program = `
    import v8 from 'node:v8'
    import { openPool } from ${JSON.stringify(path.resolve(import.meta.dirname, '../../src/core/db/pool.ts'))}
    import { sql } from ${JSON.stringify(path.resolve(import.meta.dirname, '../../src/core/db/sql.ts'))}
    const pool = await openPool({ databaseUrl: process.argv[1], connections: 1 })
    const old = () => v8.getHeapSpaceStatistics()
      .reduce((sum, space) => sum + (/^(old|large_object)_space/.test(space.space_name) ? space.space_used_size : 0), 0)
    const ask = async times => {
      for (let time = 0; time < times; time++)
        await pool.any(sql.unsafe\`select repeat('x', 5000) || i as text from generate_series(1, 100) i\`)
    }
    await ask(100)
    const before = old()
    await ask(200)
    console.log(Math.round((old() - before) / 200 / 1024))
    await pool.end()`

  it('does not outlive its use until a full collection of the heap', async () => {
    const databaseUrl = await createDatabase()
    try {
      const { stdout } = await promisify(execFile)(process.execPath, [
        '--max-semi-space-size=8',
        '--heap-growing-percent=5000',
        '--input-type=module',
        '--eval',
        program,
        databaseUrl,
      ])
      assert.ok(Number(stdout) < 100, `${stdout} KB a statement moved to the old heap`)
    } finally {
      await dropDatabase(new URL(databaseUrl).pathname.slice(1))
    }
  })
})
