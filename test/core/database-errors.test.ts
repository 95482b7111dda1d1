import assert from 'node:assert/strict'
import net, { type AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { AppError } from '#core/base/errors.ts'
import { type DatabaseErrorKind, databaseErrorKind, isDatabaseError, isTransient } from '#core/db/database-errors.ts'
import { DatabaseClient } from '#core/db/pg-client.ts'
import { inTransaction, openPool, type Pool } from '#core/db/pool.ts'
import { retryWhileUnavailable } from '#core/db/retry.ts'
import { rawQuery } from '#core/db/sql.ts'
import { startApp, type TestApp } from '../support/app.ts'
import { startResettingProxy } from '../support/resetting-proxy.ts'

/** What a server raises, by SQLSTATE. */
const STATES: Record<DatabaseErrorKind, string[]> = {
  unavailable: [
    ...['08000', '08003', '08006', '08P01'],
    ...['25006', '25P03', '25P04', '28000', '28P01', '3D000'],
    ...['40000', '40001', '40003', '40P01', '42501', '42P05', '26000'],
    ...['53000', '53100', '53200', '53300', '53400', '55000', '55P03', '57000', '57P01', '57P02', '57P03', '57P05'],
    ...['58000', '58030', '72000', 'F0000', 'HV000', 'XX000', 'XX001', 'ZZ999'],
  ],
  timeout: [],
  fault: [
    '0A000',
    '21000',
    '22012',
    '22P02',
    '23502',
    '23503',
    '23505',
    '23514',
    '23P01',
    '25001',
    '25P02',
    '42601',
    '42703',
    '42P01',
    '54000',
    '54001',
    'P0001',
  ],
}

const raising = (state: string, message = 'raised') =>
  `do $$ begin raise exception '${message}' using errcode = '${state}'; end $$`

describe('errors of the database', function () {
  this.timeout(60_000)
  let app: TestApp
  let pool: Pool
  before(async () => {
    app = await startApp()
    pool = app.services.pool
  })
  after(() => app.close())

  const thrownBy = (work: () => Promise<unknown>): Promise<unknown> =>
    work().then(
      () => assert.fail('nothing was thrown'),
      error => error,
    )
  const kindOf = async (work: () => Promise<unknown>) => databaseErrorKind(await thrownBy(work))

  it('are classified by what the server reports, on both pools and in transactions', async () => {
    const { db } = app.services.queues
    for (const [kind, states] of Object.entries(STATES))
      for (const state of states) {
        const text = raising(state)
        assert.equal(await kindOf(() => pool.query(rawQuery(text))), kind, `${state}`)
        assert.equal(await kindOf(() => db.executeSql(text)), kind, `${state} by pg-boss`)
        const inside = () => inTransaction(pool, tx => tx.query(rawQuery(text)))
        // A server that says that it ends the connection does so: nothing is rolled back.
        if (!state.startsWith('40') && state !== '57P01')
          assert.equal(await kindOf(inside), kind, `${state} in a transaction`)
      }
  })

  it('are temporary where an operator cancels a statement or a server takes no writes', async () => {
    const waiting = (text: string) =>
      kindOf(() =>
        Promise.all([
          pool.query(rawQuery(`select pg_sleep(30) /* ${text} */`)),
          sleep(200).then(() =>
            pool.query(
              rawQuery(
                `select ${text}(pid) from pg_stat_activity where query like '%/* ${text} */%' and pid <> pg_backend_pid()`,
              ),
            ),
          ),
        ]),
      )
    assert.equal(await waiting('pg_cancel_backend'), 'unavailable')
    assert.equal(await waiting('pg_terminate_backend'), 'unavailable')
    const late = inTransaction(pool, async tx => {
      await tx.query(rawQuery('set local statement_timeout = 50'))
      await tx.query(rawQuery('select pg_sleep(30)'))
    })
    assert.equal(await kindOf(() => late), 'timeout')
    const readOnly = inTransaction(pool, async tx => {
      await tx.query(rawQuery('set transaction read only'))
      await tx.query(rawQuery('create table never (id int)'))
    })
    assert.equal(await kindOf(() => readOnly), 'unavailable')
  })

  it('are distinguished from errors of other sockets', async () => {
    const server = net.createServer(socket => void socket.resetAndDestroy())
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    const { port } = server.address() as AddressInfo
    const of = { connectionString: `postgres://muster@127.0.0.1:${port}/muster` }
    try {
      const other = await thrownBy(() => fetch(`http://127.0.0.1:${port}/`))
      assert.equal(databaseErrorKind(other), null, String((other as Error).cause))
      const client = new DatabaseClient(of)
      client.on('error', () => {})
      assert.equal(await kindOf(() => client.connect()), 'unavailable')
      const { connectionString: databaseUrl } = of
      assert.equal(await kindOf(() => openPool({ databaseUrl, connections: 1 })), 'unavailable')
    } finally {
      server.close()
    }
    assert.equal(databaseErrorKind(Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' })), null)
    assert.equal(databaseErrorKind(undefined), null)
  })

  it('are temporary when a connection is reset in a statement, between two of a transaction, and at its start', async () => {
    const proxy = await startResettingProxy(app.databaseUrl)
    const own = await openPool({ databaseUrl: proxy.url, connections: 2 })
    own.on('error', () => {})
    try {
      const during = own.query(rawQuery('select pg_sleep(30)'))
      await sleep(200)
      proxy.resetAll()
      assert.equal(await kindOf(() => during), 'unavailable')
      let ran = 0
      const between = inTransaction(own, async tx => {
        await tx.query(rawQuery('select 1'))
        proxy.resetAll()
        await sleep(200)
        ran++
        await tx.query(rawQuery('select 1'))
      })
      assert.equal(await kindOf(() => between), 'unavailable')
      assert.equal(ran, 1, 'the transaction is over when its work is')
      proxy.refuse = true
      const error = await thrownBy(() => own.query(rawQuery('select 1')))
      assert.equal(databaseErrorKind(error), 'unavailable')
      setTimeout(() => {
        proxy.refuse = false
      }, 200)
      await retryWhileUnavailable(() => own.query(rawQuery('select 1')))
    } finally {
      await own.end()
      await proxy.close()
    }
  })

  it('are found as the cause of another error', async () => {
    const cause = await thrownBy(() => pool.query(rawQuery(raising('53100'))))
    const refusal = new AppError('TOOL_HTTP_ERROR', { cause: new AppError('SERVICE_NOT_READY', { cause }) })
    assert.ok(isTransient(refusal) && isDatabaseError(refusal))
    const wrong = await thrownBy(() => pool.query(rawQuery(raising('22012'))))
    assert.ok(!isTransient(new AppError('INTERNAL_ERROR', { cause: wrong })))
    assert.ok(!isTransient(new AppError('NAME_CONFLICT')))
  })

  it('answer requests with 503 and Retry-After, or 500 for a fault', async () => {
    const project = await app.project()
    await pool.query(
      rawQuery(`create function refuse() returns trigger language plpgsql as $$
        begin raise exception 'refused' using errcode = new.name; end $$`),
    )
    await pool.query(rawQuery('create trigger refuse before insert on actors for each row execute function refuse()'))
    try {
      for (const name of ['53100', '25006', '57014', '57P01', '08006', '40001', '40P01', '55P03', 'XX000']) {
        const { status, body, headers } = await project.key.post('/actors', { name })
        assert.deepEqual([status, body.error.code], [503, 'SERVICE_NOT_READY'], name)
        assert.equal(headers.get('retry-after'), '1')
        assert.deepEqual(body.error.meta, { checks: { database: 'not available' } })
      }
      for (const name of ['22012', 'P0001', '42P01'])
        assert.equal((await project.key.post('/actors', { name })).status, 500, name)
    } finally {
      await pool.query(rawQuery('drop function refuse cascade'))
    }
    assert.equal((await project.key.post('/actors', { name: 'after' })).status, 201)
  })

  it('leave an Idempotency-Key to the retry, even if its claim could not be released immediately', async () => {
    const project = await app.project()
    const headers = { 'idempotency-key': 'again' }
    const refusing = async (table: string, when: string) => {
      await pool.query(
        rawQuery(`create function refuse_${table}() returns trigger language plpgsql as $$
          begin raise exception 'refused' using errcode = '53100'; end $$`),
      )
      await pool.query(
        rawQuery(`create trigger refuse before ${when} on ${table} for each row execute function refuse_${table}()`),
      )
    }
    const allow = (table: string) => pool.query(rawQuery(`drop function refuse_${table} cascade`))
    await refusing('actors', 'insert')
    await refusing('idempotency_keys', 'update or delete')
    try {
      assert.equal((await project.key.post('/actors', { name: 'one' }, headers)).status, 503)
      assert.equal((await project.key.post('/actors', { name: 'one' }, headers)).status, 409, 'it is still claimed')
    } finally {
      await allow('actors')
      await allow('idempotency_keys')
    }
    for (;;) {
      const { status, body } = await project.key.post('/actors', { name: 'one' }, headers)
      if (status === 201) break
      assert.equal(body.error.code, 'IDEMPOTENCY_IN_PROGRESS')
      await sleep(100)
    }
    assert.equal((await project.key.get('/actors')).body.total, 1)
  })
})
