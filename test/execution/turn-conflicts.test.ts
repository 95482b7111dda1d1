import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { sql } from '#core/db/sql.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { runWorker } from '../support/hosts.ts'
import { startProcess } from '../support/processes.ts'
import { startAgentApp } from './fixtures.ts'

const FAST = { GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '1', PROVIDER_MAX_RETRIES: '0' }

describe('turns with concurrent writers', function () {
  this.timeout(120_000)

  it('continue after a step that a lost worker journals between the load and the claim of the next one', async () => {
    const app = await startAgentApp({ workers: [] })
    const double = client(app.double)
    const db = new pg.Client(app.databaseUrlOf(app.projectId))
    await db.connect()
    const waiting = async () =>
      (await app.pool.oneFirst(sql.unsafe`
        select count(*)::int from pg_stat_activity
        where wait_event_type = 'Lock' and datname = current_database()`)) as number
    try {
      const tools = { tool_calls: [{ name: 'nothing', args: {} }], gate: 'stale' }
      await double.put('stale', {
        rules: [{ when: { call: 1 }, reply: tools }, { reply: { text: 'answer' } }],
      } as never)
      const agent = await app.agent({ model: 'stale/m' })
      const first = await startProcess('worker', app.databaseUrl, FAST, ['generation'])
      const { generation_id } = (await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })).body
      await eventually(async () => ((await double.gate('stale'))?.waiting ?? 0) > 0)
      await db.query('begin')
      await db.query('select from generations where id = $1 for update', [generation_id])
      await double.read('POST', '/control/gates/stale/open')
      await eventually(async () => (await waiting()) >= 1, { within: 20_000 })
      await first.kill('SIGKILL')
      const second = await runWorker(app.databaseUrl, FAST, ['generation'])
      await eventually(async () => (await waiting()) >= 2, { within: 30_000 })
      await db.query('commit')
      const record = await eventually(
        async () => {
          const { body } = await app.key.get(`/generations/${generation_id}`)
          return ['completed', 'failed'].includes(body.status) ? body : null
        },
        { within: 30_000 },
      )
      assert.deepEqual([record.status, record.error, record.step_count], ['completed', null, 2])
      await second.stop()
    } finally {
      await db.end()
      await app.close()
    }
  })

  it('are not failed by a purge of their trace, and call their model once', async () => {
    const app = await startAgentApp()
    try {
      const double = client(app.double)
      await double.put('race', { rules: [{ reply: { text: 'x' } }] })
      const agent = await app.agent({ model: 'race/m' })
      const turns = 120
      const purgeAtItsEnd = async () => {
        const { trace_id } = (await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })).body
        while ((await app.key.delete(`/traces/${trace_id}/content`)).status === 409) await sleep(1)
      }
      await Promise.all(
        Array.from({ length: 4 }, async () => {
          for (let n = 0; n < turns / 4; n++) await purgeAtItsEnd()
        }),
      )
      const ended = await eventually(async () => {
        const { body } = await app.key.get('/generations?status=completed&limit=1')
        return body.total === turns ? body.total : null
      })
      assert.equal(ended, turns)
      assert.equal((await double.requests('race')).length, turns)
    } finally {
      await app.close()
    }
  })
})
