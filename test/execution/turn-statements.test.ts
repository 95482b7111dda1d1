import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import { targetDirectory } from '#control/telemetry/target-directory.ts'
import { spanTargets } from '#core/base/span-targets.ts'
import { sql } from '#core/db/sql.ts'
import { compressEnvelope, readEnvelope, StoredEnvelope, storedEnvelope } from '#core/writes/event-envelopes.ts'
import { countStatements } from '../bench/http.ts'
import { eventually } from '../support/app.ts'
import { statementsOfEach } from '../support/statements.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'

/** Until the steps of a turn have gone into the file of its trace. */
const TRACE_WRITTEN_MS = 500
/** The poll of all queues once a second, which rounds of a second would all have. */
const QUEUE_POLL = /^\s*with queue as materialized/

/** Rounds that fill caches and prepare statements, and rounds that count. */
const ROUNDS = { first: 6, counted: 8 }

/** Asserts the number of statements that some work sends in every round, web and worker together. */
const assertStatements = async (count: number, work: (sent: readonly string[]) => Promise<unknown>) => {
  const rounds: string[][] = []
  for (let n = 0; n < ROUNDS.first + ROUNDS.counted; n++) {
    if (n >= ROUNDS.first) await sleep(TRACE_WRITTEN_MS)
    const { texts, stop } = countStatements()
    await work(texts)
    stop()
    rounds.push(texts)
  }
  const common = statementsOfEach(rounds.slice(ROUNDS.first)).filter(text => !QUEUE_POLL.test(text))
  assert.equal(common.length, count, common.join('\n'))
}

describe('statements', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startAgentApp({
      inProcess: true,
      workers: ['generation', 'orchestration'],
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' },
    }),
  )

  it('of a waited turn are four', async () => {
    await assertStatements(4, async () => {
      const { status } = await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello' })
      assert.equal(status, 200)
    })
  })

  it('of a turn in a project with a telemetry target are four too, and write its spans', async () => {
    const path = `/projects/${app.projectId}/telemetry`
    await targetDirectory(app.services).open()
    assert.equal((await app.key.put(path, { endpoint: 'https://receiver.example/v1/traces' })).status, 200)
    await eventually(() => spanTargets.size === 1)
    let turns = 0
    await assertStatements(4, async () => {
      const { status } = await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello' })
      assert.equal(status, 200)
      turns++
    })
    const written = await app.rows('select span_count from span_outbox')
    assert.deepEqual(
      written.map(({ span_count }) => span_count),
      Array(turns).fill(2),
    )
    assert.equal((await app.key.put(path, { endpoint: null })).status, 200)
    assert.deepEqual(await app.rows('select from span_outbox'), [])
    await eventually(() => spanTargets.size === 0)
  })

  it('of a large turn are two more: its message is claimed without it, its end is notified without the result', async () => {
    const prompt = randomBytes(32 * 1024).toString('hex')
    await assertStatements(6, async () => {
      const { status } = await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt })
      assert.equal(status, 200)
    })
  })

  it('of a turn change no column that an index reads, so that its updates write no index', async () => {
    const changed = [
      'status',
      'attempt',
      'started_at',
      'settled_at',
      'journalled',
      'last_activity_at',
      'updated_at',
      'usage',
    ]
    const indexes = await app.pool.any(
      sql.unsafe`select indexdef from pg_indexes where tablename = 'generations' and schemaname = 'public'`,
    )
    assert.ok(indexes.length > 10)
    const reading = indexes.filter(({ indexdef }: any) =>
      changed.some(column => new RegExp(`\\b${column}\\b`).test(indexdef)),
    )
    assert.deepEqual(reading, [])
  })

  it('of a node change no column of its run that an index reads, so that its updates write no index', async () => {
    const changed = /\b(revision|outcomes|written|active_nodes|steps|rounds|updated_at)\b/
    const indexes = await app.pool.any(
      sql.unsafe`select indexdef from pg_indexes where tablename = 'orchestration_runs' and schemaname = 'public'`,
    )
    assert.ok(indexes.length > 5)
    assert.deepEqual(
      indexes.filter(({ indexdef }: any) => changed.test(indexdef)),
      [],
    )
  })

  it('of a turn write events whose fields are in the dictionary of envelopes', async () => {
    await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello' })
    const events = await app.pool.any(sql.type(StoredEnvelope.extend({ name: z.string() }))`
      select ${storedEnvelope}, name from events where name like 'generations.%' order by id desc limit 2`)
    for (const event of events) {
      // Times and IDs of different milliseconds take more bytes than equal ones.
      const sameIds = (text: string) => text.replace(/(?<=_)[0-9a-z]{26}/g, event.id.slice('evt_'.length))
      const time = new Date(event.created_at).toISOString()
      const envelope = sameIds(readEnvelope(event)).replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, time)
      const ids = JSON.parse(sameIds(JSON.stringify({ ...event, envelope: null, packed: null })))
      const bytes = compressEnvelope({ ...ids, envelope })!.length
      assert.ok(bytes < 130, `${event.name} takes ${bytes} bytes: is there a new field?`)
    }
    assert.equal(events.length, 2)
  })

  it('of one are five with quotas of tokens and of money for the project, the agent and its end users', async () => {
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
    await assertStatements(5, async () => {
      const { status } = await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello' })
      assert.equal(status, 200)
    })
    for (const { id } of (await app.admin.get(`/quotas?project_id=${app.projectId}`)).body.data)
      assert.equal((await app.admin.delete(`/quotas/${id}`)).status, 204)
  })

  it('of a direct call of a tool are three: the tool, the audit entry, the usage', async () => {
    const execute = { method: 'GET', url: `${app.url}/healthz` }
    const tool = await app.admin.post('/tools', { project_id: app.projectId, name: 'probe', execute })
    await assertStatements(3, async sent => {
      const { status } = await app.key.post(`/tools/${tool.body.id}/call`, {})
      assert.equal(status, 200)
      // The usage is written after the response.
      await eventually(() => sent.some(text => text.includes('usage_events')))
    })
  })

  it('of a waited run of one tool node are ten, and one more for each further node', async () => {
    const execute = { method: 'GET', url: `${app.url}/healthz` }
    const tool = await app.admin.post('/tools', { project_id: app.projectId, name: 'node', execute })
    for (const [count, statements] of [
      [1, 10],
      [4, 13],
    ]) {
      const graph = await app.admin.post('/orchestrations', {
        project_id: app.projectId,
        name: 'counted',
        nodes: Array.from({ length: count }, (_, n) => ({ id: `n${n}`, type: 'tool', tool_id: tool.body.id })),
        edges: Array.from({ length: count - 1 }, (_, n) => ({ from: `n${n}`, to: `n${n + 1}` })),
      })
      assert.equal(graph.status, 201, JSON.stringify(graph.body))
      await assertStatements(statements, async () => {
        const { body } = await app.key.post('/orchestration-runs', { orchestration_id: graph.body.id, wait: true })
        assert.equal(body.status, 'succeeded', JSON.stringify(body))
      })
    }
  })

  const openSession = async () => {
    const actor = await app.key.post('/actors', { name: 'caller' })
    const session = { agent_id: app.agentId, actor_id: actor.body.id, auto_generate: true }
    return (await app.key.post('/sessions', session)).body.id
  }

  it('of a waited message of a session are fourteen', async () => {
    const id = await openSession()
    await assertStatements(14, async () => {
      const { body } = await app.key.post(`/sessions/${id}/messages?wait=true`, { message: 'hello' })
      assert.ok(body.reply)
    })
  })

  it('of one with an idempotency key are fifteen: the message is looked up', async () => {
    const id = await openSession()
    let n = 0
    await assertStatements(15, async () => {
      const message = { message: 'hello', idempotency_key: `key-${n++}` }
      const { body } = await app.key.post(`/sessions/${id}/messages?wait=true`, message)
      assert.ok(body.reply)
    })
  })
})

describe('statements of a web process that executes turns', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startAgentApp({ workers: [], env: { EGRESS_ALLOW_HOSTS: '127.0.0.1', WEB_EXECUTES: 'true' } }),
  )

  it('are two for a waited turn, and one more to read its tools', async () => {
    const agent = await app.agent({
      tool_bindings: [{ tool: { name: 'pick', type: 'client', parameters: { type: 'object' } } }],
    })
    for (const [id, count] of [
      [app.agentId, 2],
      [agent, 3],
    ] as const)
      await assertStatements(count, async () => {
        const { status } = await app.key.post(`/agents/${id}/generate?wait=true`, { prompt: 'hello' })
        assert.equal(status, 200)
      })
  })
})
