import assert from 'node:assert/strict'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import pg from 'pg'
import { findEmbedded, startEmbedded } from '#local/postgres.ts'
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

  it('is reached through a socket in its data directory, which only its user can enter', async () => {
    const server = await startEmbedded({ dir })
    const addresses = async (url: string) => query(url, 'select inet_server_addr() is null as local')
    assert.deepEqual(await addresses(server.url), [{ local: true }])
    assert.equal(fs.statSync(dir).mode & 0o777, 0o700)
    const [tcp] = server.url.split('?')
    assert.deepEqual(await addresses(tcp), [{ local: false }])
    // As a server has it that an earlier release started.
    const pidFile = path.join(dir, 'postmaster.pid')
    const lines = fs.readFileSync(pidFile, 'utf8').split('\n')
    fs.writeFileSync(pidFile, lines.with(4, '').join('\n'))
    assert.equal(await findEmbedded(dir), tcp)
    fs.writeFileSync(pidFile, lines.join('\n'))
    await server.stop()
  })

  it('has no socket where its path is too long, or its file system refuses it', async () => {
    const long = await startEmbedded({ dir: path.join(base, 'x'.repeat(80)), ephemeral: true })
    assert.equal(new URL(long.url).search, '')
    await long.stop()
    const port = await quietPort()
    fs.mkdirSync(path.join(dir, `.s.PGSQL.${port}`))
    const refused = await startEmbedded({ dir, port })
    assert.equal(new URL(refused.url).search, '')
    assert.deepEqual(await query(refused.url, 'select 1 as one'), [{ one: 1 }])
    await refused.stop()
    fs.rmdirSync(path.join(dir, `.s.PGSQL.${port}`))
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
