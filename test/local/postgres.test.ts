import assert from 'node:assert/strict'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import pg from 'pg'
import { startEmbedded } from '#local/postgres.ts'
import { quietPort } from '../support/postgres.ts'

describe('embedded PostgreSQL', () => {
  const base = fs.mkdtempSync(path.join(tmpdir(), 'muster-embedded-'))
  const dir = path.join(base, 'pg')
  const postmaster = () => Number(fs.readFileSync(path.join(dir, 'postmaster.pid'), 'utf8').split('\n')[0])

  async function query(url: string, sql: string): Promise<unknown[]> {
    const client = new pg.Client(url)
    await client.connect()
    try {
      return (await client.query(sql)).rows
    } finally {
      await client.end()
    }
  }

  before(() => fs.chmodSync(base, 0o755))
  after(() => fs.rmSync(base, { recursive: true, force: true }))

  it('keeps its data over a restart', async () => {
    const first = await startEmbedded({ dir })
    await query(first.url, `create table notes as select 'kept' as note`)
    assert.deepEqual(await query(first.url, `select current_setting('server_encoding') as encoding, lower('ÄÖÜ')`), [
      { encoding: 'UTF8', lower: 'äöü' },
    ])
    await first.stop()
    await assert.rejects(query(first.url, 'select 1'))
    const second = await startEmbedded({ dir })
    assert.deepEqual(await query(second.url, 'select note from notes'), [{ note: 'kept' }])
    await second.stop()
  })

  it('recovers after the server was killed, also when a stranger has its process id', async () => {
    await startEmbedded({ dir })
    process.kill(postmaster(), 'SIGKILL')
    const recovered = await startEmbedded({ dir })
    assert.deepEqual(await query(recovered.url, 'select note from notes'), [{ note: 'kept' }])
    const pidFile = path.join(dir, 'postmaster.pid')
    const stale = fs.readFileSync(pidFile, 'utf8')
    await recovered.stop()
    fs.writeFileSync(pidFile, stale.replace(/^\d+/, String(process.pid)))
    const again = await startEmbedded({ dir })
    assert.deepEqual(await query(again.url, 'select note from notes'), [{ note: 'kept' }])
    await again.stop()
  })

  it('takes over a server that outlived its owner, and moves it when another port is requested', async () => {
    const orphan = await startEmbedded({ dir })
    const taken = await startEmbedded({ dir })
    assert.equal(taken.url, orphan.url)
    const port = await quietPort()
    const moved = await startEmbedded({ dir, port })
    assert.equal(new URL(moved.url).port, String(port))
    await moved.stop()
    await orphan.stop()
  })

  it('initialises once when two start together', async () => {
    fs.rmSync(dir, { recursive: true })
    const [one, two] = await Promise.all([startEmbedded({ dir }), startEmbedded({ dir })])
    assert.equal(one.url, two.url)
    assert.deepEqual(fs.readdirSync(base), ['pg'])
    await Promise.all([one.stop(), two.stop()])
  })

  it('an ephemeral server leaves no process and no file', async () => {
    const server = await startEmbedded({ dir: path.join(base, 'ephemeral'), ephemeral: true })
    assert.deepEqual(await query(server.url, 'show fsync'), [{ fsync: 'off' }])
    await server.stop()
    assert.equal(fs.existsSync(path.join(base, 'ephemeral')), false)
  })

  it('reports why the server does not start', async () => {
    const server = await startEmbedded({ dir })
    await server.stop()
    fs.appendFileSync(path.join(dir, 'postgresql.conf'), `work_mem = 'plenty'\n`)
    await assert.rejects(startEmbedded({ dir }), /invalid value for parameter "work_mem"/)
  })
})
