import assert from 'node:assert/strict'
import { z } from 'zod'
import { sendWithCommit } from '#core/db/commit-piggyback.ts'
import { inTransaction, openPool, type Pool, type Transaction } from '#core/db/pool.ts'
import { rawQuery, sql } from '#core/db/sql.ts'
import { setForTransaction } from '#core/db/transaction-settings.ts'
import { countRoundTrips } from '../bench/http.ts'
import { createDatabase, dropDatabase } from '../support/postgres.ts'

describe('begin and commit of a transaction', () => {
  let databaseUrl: string
  let pool: Pool

  before(async () => {
    databaseUrl = await createDatabase()
    // One connection: state left by a transaction meets the next one.
    pool = await openPool({ databaseUrl, connections: 1 })
    await pool.query(rawQuery('create table notes (n int primary key, unique (n) deferrable initially immediate)'))
    await pool.query(rawQuery('create table kept (n int unique deferrable initially deferred)'))
  })
  beforeEach(async () => {
    await pool.query(rawQuery('truncate notes, kept'))
    // The first transaction of a connection sends them by themselves.
    await inTransaction(pool, tx => tx.query(rawQuery('select 1')))
  })
  after(async () => {
    await pool.end()
    await dropDatabase(new URL(databaseUrl).pathname.slice(1))
  })

  const note = (tx: Pool | Transaction, n: number) => tx.query(sql.unsafe`insert into notes (n) values (${n})`)
  const keep = (tx: Pool | Transaction, n: number) => tx.query(sql.unsafe`insert into kept (n) values (${n})`)
  const numbers = async (table: string) =>
    (await pool.anyFirst(rawQuery(`select n from ${table} order by n`))) as unknown as number[]

  it('take no separate round trip', async () => {
    const trips = countRoundTrips()
    await inTransaction(pool, async tx => {
      await note(tx, 1)
      await sendWithCommit(() => note(tx, 2))
    })
    trips.stop()
    assert.equal(trips.value, 2)
    assert.deepEqual(await numbers('notes'), [1, 2])
  })

  it('take no separate round trip for a single statement, with or without values or a prepared plan', async () => {
    const trips = countRoundTrips()
    for (let n = 0; n < 12; n++) await inTransaction(pool, tx => sendWithCommit(() => note(tx, n)))
    await inTransaction(pool, tx => sendWithCommit(() => tx.query(rawQuery('insert into notes values (100)'))))
    trips.stop()
    assert.equal(trips.value, 13)
    assert.equal((await numbers('notes')).length, 13)
  })

  it('are not sent for an empty transaction', async () => {
    const trips = countRoundTrips()
    await inTransaction(pool, async () => {})
    await assert.rejects(
      inTransaction(pool, async () => {
        throw new Error('changed its mind')
      }),
      /changed its mind/,
    )
    trips.stop()
    assert.equal(trips.value, 0)
    await note(pool, 1)
    assert.deepEqual(await numbers('notes'), [1])
  })

  it('enclose all statements, including statements after a failed one', async () => {
    for (const bad of ['select 1 / 0', 'nonsense', 'select n from nowhere']) {
      const work = inTransaction(pool, async tx => {
        await tx.query(rawQuery(bad)).catch(() => {})
        await note(tx, 1)
      })
      await assert.rejects(work, /transaction is aborted/)
      assert.deepEqual(await numbers('notes'), [])
    }
  })

  it('commit nothing if the last statement fails', async () => {
    const work = inTransaction(pool, async tx => {
      await note(tx, 1)
      await sendWithCommit(() => note(tx, 1))
    })
    await assert.rejects(work, (error: { code?: string; cause?: { code?: string } }) => error.cause?.code === '23505')
    assert.deepEqual(await numbers('notes'), [])
    await inTransaction(pool, tx => note(tx, 2))
    assert.deepEqual(await numbers('notes'), [2])
  })

  it('commit nothing if the COMMIT sent with it fails', async () => {
    const work = inTransaction(pool, async tx => {
      await keep(tx, 1)
      await note(tx, 1)
      await sendWithCommit(() => keep(tx, 1))
    })
    await assert.rejects(work, (error: { cause?: { code?: string } }) => error.cause?.code === '23505')
    assert.deepEqual([await numbers('notes'), await numbers('kept')], [[], []])
    await inTransaction(pool, tx => sendWithCommit(() => keep(tx, 1)))
    assert.deepEqual(await numbers('kept'), [1])
  })

  it('fail if an earlier error was ignored', async () => {
    const work = inTransaction(pool, async tx => {
      await note(tx, 1)
      await tx.query(rawQuery('select 1 / 0')).catch(() => {})
    })
    await assert.rejects(work, /rolled back/)
    assert.deepEqual(await numbers('notes'), [])
  })

  it('repeat the transaction after a stale plan', async () => {
    await pool.query(rawQuery('create table changing (n int)'))
    const read = (tx: Transaction) => tx.any(sql.unsafe`select * from changing`)
    for (let n = 0; n < 8; n++) await inTransaction(pool, tx => sendWithCommit(() => read(tx)))
    await pool.query(rawQuery('alter table changing add column more text'))
    await inTransaction(pool, async tx => {
      await read(tx)
      await note(tx, 1)
    })
    await pool.query(rawQuery('alter table changing add column most text'))
    await inTransaction(pool, async tx => {
      await note(tx, 2)
      await sendWithCommit(() => read(tx))
    })
    assert.deepEqual(await numbers('notes'), [1, 2])
  })

  it('roll back if the work throws', async () => {
    const work = inTransaction(pool, async tx => {
      await note(tx, 1)
      throw new Error('changed its mind')
    })
    await assert.rejects(work, /changed its mind/)
    assert.deepEqual(await numbers('notes'), [])
  })

  it('support savepoints inside a transaction', async () => {
    await inTransaction(pool, async tx => {
      await tx.transaction(inner => note(inner, 1))
      await tx
        .transaction(async inner => {
          await note(inner, 2)
          throw new Error('not this one')
        })
        .catch(() => {})
      await sendWithCommit(() => note(tx, 3))
    })
    assert.deepEqual(await numbers('notes'), [1, 3])
  })

  it('refuse a statement after the last one', async () => {
    const work = inTransaction(pool, async tx => {
      await sendWithCommit(() => note(tx, 1))
      await note(tx, 2)
    })
    await assert.rejects(work, /after the last statement of its transaction/)
    assert.deepEqual(await numbers('notes'), [1])
  })

  it('return the result of each statement', async () => {
    await note(pool, 7)
    const found = await inTransaction(pool, tx => sendWithCommit(() => tx.any(rawQuery('select n from notes'))))
    assert.deepEqual(found, [{ n: 7 }])
    const { rowCount } = await inTransaction(pool, tx => sendWithCommit(() => tx.query(rawQuery('delete from notes'))))
    assert.equal(rowCount, 1)
  })

  describe('with settings', () => {
    const limit = (tx: Transaction, ms: number) => setForTransaction(tx, { statement_timeout: `${ms}ms` })
    const shown = sql.type(z.object({ statement_timeout: z.string() }))
    const show = (tx: Pool | Transaction) => tx.oneFirst(shown`show statement_timeout`)
    let usual: string

    before(async () => {
      usual = await show(pool)
      // A statement is sent ahead once it is prepared.
      for (let time = 0; time < 10; time++) await inTransaction(pool, tx => limit(tx, 1000))
    })

    it('apply them with one statement in one round trip, which returns its own result', async () => {
      const trips = countRoundTrips()
      for (const ms of [1234, 4321]) {
        const value = await inTransaction(pool, async tx => {
          await limit(tx, ms)
          return sendWithCommit(() => show(tx))
        })
        assert.equal(value, `${ms}ms`)
      }
      trips.stop()
      assert.equal(trips.value, 2)
      assert.equal(await show(pool), usual)
    })

    it('apply them to all statements of the transaction', async () => {
      await inTransaction(pool, async tx => {
        await limit(tx, 1234)
        assert.equal(await show(tx), '1234ms')
        assert.equal(await show(tx), '1234ms')
        await limit(tx, 4321)
        assert.equal(await show(tx), '4321ms')
      })
      assert.equal(await show(pool), usual)
    })

    it('fail the next statement if they are invalid', async () => {
      const work = inTransaction(pool, async tx => {
        await setForTransaction(tx, { statement_timeout: 'soon' })
        await sendWithCommit(() => note(tx, 1))
      })
      await assert.rejects(work, /statement_timeout/)
      assert.deepEqual(await numbers('notes'), [])
      assert.equal(await show(pool), usual)
    })

    it('drop them without a following statement', async () => {
      const trips = countRoundTrips()
      await inTransaction(pool, tx => limit(tx, 1234))
      trips.stop()
      assert.equal(trips.value, 0)
      assert.equal(await show(pool), usual)
    })
  })
})
