import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from '../../src/core/db/sql.ts'
import { countStatements } from '../bench/http.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'

/** Until the steps of a turn have gone into the file of its trace. */
const TRACE_WRITTEN_MS = 500
/** Until the usage of work that has no transaction is written. */
const USAGE_WRITTEN_MS = 100

describe('statements', function () {
  this.timeout(60_000)
  let app: AgentApp

  before(async () => {
    app = await startAgentApp({ inProcess: true })
  })
  after(() => app.close())

  /** The fewest of some tries, web and worker together: a poll or a heartbeat may come in between. */
  const fewest = async (ask: () => Promise<unknown>): Promise<number> => {
    for (let n = 0; n < 6; n++) await ask()
    const counts: number[] = []
    for (let n = 0; n < 8; n++) {
      await sleep(TRACE_WRITTEN_MS)
      const counter = countStatements()
      await ask()
      await sleep(15)
      counter.stop()
      counts.push(counter.value)
    }
    return Math.min(...counts)
  }

  it('of a waited turn are seven', async () => {
    const count = await fewest(async () => {
      const { status } = await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello' })
      assert.equal(status, 200)
    })
    assert.equal(count, 7)
  })

  it('of a turn write events whose fields are in the dictionary of envelopes', async () => {
    await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello' })
    const { rows } = await app.services.pool.query(sql.unsafe`
      select name, octet_length(packed) as bytes from events where name like 'generations.%' order by id desc limit 2`)
    for (const { name, bytes } of rows as unknown as { name: string; bytes: number }[])
      assert.ok(bytes < 175, `${name} takes ${bytes} bytes: is there a new field?`)
    assert.equal(rows.length, 2)
  })

  it('of one are eight with quotas of tokens and of money for the project, the agent and its end users', async () => {
    for (const metric of ['tokens', 'cost_usd'])
      for (const scope of ['project', 'agent', 'actor']) {
        const quota = {
          project_id: app.projectId,
          scope,
          metric,
          window: 'calendar_month',
          limit: 1_000_000,
          mode: 'monitor',
        }
        assert.equal(
          (await app.admin.post('/quotas', { ...quota, meter_type: metric === 'cost_usd' ? 'storage' : null })).status,
          201,
        )
      }
    const count = await fewest(async () => {
      const { status } = await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello' })
      assert.equal(status, 200)
    })
    assert.equal(count, 8)
    for (const { id } of (await app.admin.get(`/quotas?project_id=${app.projectId}`)).body.data)
      assert.equal((await app.admin.delete(`/quotas/${id}`)).status, 204)
  })

  it('of a direct call of a tool are three: the tool, the audit entry, the usage', async () => {
    const execute = { method: 'GET', url: `${app.url}/healthz` }
    const tool = await app.admin.post('/tools', { project_id: app.projectId, name: 'probe', execute })
    const count = await fewest(async () => {
      const { status } = await app.key.post(`/tools/${tool.body.id}/call`, {})
      assert.equal(status, 200)
      await sleep(USAGE_WRITTEN_MS)
    })
    assert.equal(count, 3)
  })

  it('of a waited message of a session are twenty-five', async () => {
    const actor = await app.key.post('/actors', { name: 'caller' })
    const session = await app.key.post('/sessions', {
      agent_id: app.agentId,
      actor_id: actor.body.id,
      auto_generate: true,
    })
    const count = await fewest(async () => {
      const { body } = await app.key.post(`/sessions/${session.body.id}/messages?wait=true`, { message: 'hello' })
      assert.ok(body.reply)
    })
    assert.equal(count, 25)
  })
})
