import assert from 'node:assert/strict'
import { rawQuery } from '#core/db/sql.ts'
import { upload } from '../content/ingestion-support.ts'
import { client } from '../local/double/client.ts'
import { CELL_COUNT, eventually } from '../support/app.ts'
import { type Scrape, scrape } from '../support/metrics.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { startReceiver } from '../support/receiver.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { openStream, readStream } from './streams.ts'

const ACTIONS = [
  'agents:*',
  'conversations:*',
  'actors:*',
  'generations:*',
  'model-routes:*',
  'files:*',
  'documents:*',
  'webhooks:*',
  'triggers:*',
]

describe('metrics of work', function () {
  this.timeout(60_000)

  describe('of turns', () => {
    const app = forSuite(() => startAgentApp({ workers: [], actions: ACTIONS }))
    let process: TestProcess
    let double: ReturnType<typeof client>
    before(async () => {
      process = await startProcess('worker', app.databaseUrl, { PROVIDER_MAX_RETRIES: '0' }, ['generation'])
      double = client(app.double)
    })
    after(async () => {
      await process?.kill()
    })

    const worker = () => scrape(process.url)
    /** Waits until the worker shows a number: it counts after the commit that answers the caller. */
    const shows = (name: string, labels: Record<string, string>, expected: number) =>
      eventually(async () => (await worker()).value(name, labels) === expected, {
        what: `${name} ${JSON.stringify(labels)} ${expected}`,
      })
    const generate = async (model: string, query = 'wait=true') =>
      (await app.key.post(`/agents/${await app.agent({ model })}/generate?${query}`, { prompt: 'x' })).body
    const open = (gate: string) => double.read('POST', `/control/gates/${gate}/open`)
    const waitingAt = (gate: string) =>
      eventually(async () => ((await double.gate(gate))?.waiting ?? 0) > 0, { what: `waiting at ${gate}` })

    it('count tokens by kind, and their cost', async () => {
      const price = { model: 'paid/m', unit: 'token', effective_from: '2020-01-01T00:00:00.000Z' }
      const priced = await app.admin.put(`/ai-providers/${app.providerId}/prices`, {
        prices: [
          { ...price, component: 'input_tokens', unit_price: 0.01 },
          { ...price, component: 'output_tokens', unit_price: 0.1 },
        ],
      })
      assert.equal(priced.status, 200, JSON.stringify(priced.body))
      const usage = { prompt_tokens: 100, completion_tokens: 20, cached_tokens: 40 }
      await double.put('paid', { rules: [{ reply: { text: 'yes', usage } }] })
      for (let turn = 0; turn < 2; turn++) assert.equal((await generate('paid/m')).status, 'completed')
      const labels = { provider: 'custom', model: 'paid/m' }
      await shows('muster_tokens_total', { ...labels, kind: 'input_tokens' }, 120)
      await shows('muster_tokens_total', { ...labels, kind: 'cached_tokens' }, 80)
      await shows('muster_tokens_total', { ...labels, kind: 'output_tokens' }, 40)
      // Cached tokens cost what input does.
      await shows('muster_cost_usd_total', { ...labels, meter_type: 'llm_tokens' }, 6)
      // By the conventions the input includes tokens of the cache.
      const call = { gen_ai_operation_name: 'chat', gen_ai_provider_name: 'custom', gen_ai_request_model: 'paid/m' }
      const counted = 'gen_ai_client_inference_usage'
      await shows(`${counted}_input_tokens_total`, call, 200)
      await shows(`${counted}_cache_read_input_tokens_total`, call, 80)
      await shows(`${counted}_output_tokens_total`, call, 40)
      await shows('gen_ai_client_token_usage_sum', { ...call, gen_ai_token_type: 'input' }, 200)
      await shows('gen_ai_client_token_usage_count', { ...call, gen_ai_token_type: 'output' }, 2)
      const { text } = await worker()
      assert.ok(!text.includes(app.projectId), 'no ids of projects')
    })

    it('time answered calls and their first pieces, also of turns that are not streamed', async () => {
      await double.put('timed', { rules: [{ reply: { chunks: ['a', 'b'], gate: 'timed-gate', gate_after: 1 } }] })
      const labels = { provider: 'custom', model: 'timed/m' }
      await open('timed-gate')
      assert.equal((await generate('timed/m')).status, 'completed')
      await shows('muster_model_call_duration_seconds_count', labels, 1)
      await shows('muster_model_first_piece_seconds_count', labels, 1)
      const agent = await app.agent({ model: 'timed/m' })
      await readStream(await openStream(app, `/agents/${agent}/generate`, { prompt: 'x', stream: true }))
      await shows('muster_model_first_piece_seconds_count', labels, 2)
      await shows('muster_model_call_duration_seconds_count', labels, 2)
      for (const name of ['inference', 'operation']) {
        await shows(`gen_ai_client_${name}_duration_seconds_count`, { gen_ai_request_model: 'timed/m' }, 2)
        await shows(`gen_ai_client_${name}_time_to_first_chunk_seconds_count`, { gen_ai_request_model: 'timed/m' }, 2)
      }
      const shown = await worker()
      const first = shown.value('muster_model_first_piece_seconds_sum', labels) as number
      assert.ok(first > 0 && first <= (shown.value('muster_model_call_duration_seconds_sum', labels) as number))
    })

    it('count attempts by outcome; an attempt without an answer has no separate label', async () => {
      await double.put('broken', { rules: [{ reply: { error: { status: 500 } } }] })
      assert.equal((await generate('broken/m')).error.code, 'AI_PROVIDER_ERROR')
      const other = { provider: 'custom', model: 'other' }
      await shows('muster_model_calls_total', { ...other, outcome: 'failed' }, 1)
      const failed = { gen_ai_request_model: 'other', error_type: 'provider_error' }
      await shows('gen_ai_client_inference_duration_seconds_count', failed, 1)

      await double.put('slow', { rules: [{ reply: { text: 'late', gate: 'slow-gate' } }] })
      const route = await app.key.post('/model-routes', {
        name: 'impatient',
        targets: [{ ai_provider_id: app.providerId, model: 'slow/m', timeout_seconds: 1, max_retries: 0 }],
      })
      assert.equal(route.status, 201, JSON.stringify(route.body))
      const agent = await app.agent({ ai_provider_id: null, model_route_id: route.body.id })
      assert.equal(
        (await app.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'x' })).body.error.code,
        'AI_PROVIDER_ERROR',
      )
      await shows('muster_model_calls_total', { ...other, outcome: 'timed_out' }, 1)

      const { generation_id: id } = await generate('slow/m', '')
      await waitingAt('slow-gate')
      assert.equal((await app.key.post(`/generations/${id}/cancel`)).status, 200)
      await shows('muster_model_calls_total', { ...other, outcome: 'aborted' }, 1)
      const { text } = await worker()
      assert.ok(!text.includes('broken/m') && !text.includes('slow/m'))
      assert.ok(!/muster_model_call_duration_seconds_count\{[^}]*model="other"/.test(text))
    })

    it('give names of models to few labels', async () => {
      const names = Array.from({ length: 12 }, (_, n) => `many/m${n}`)
      await double.put('many', { rules: [] })
      for (const name of names) assert.equal((await generate(name)).status, 'completed')
      await eventually(
        async () =>
          ((await worker()).value('muster_model_calls_total', { model: 'other', outcome: 'answered' }) ?? 0) > 0,
      )
      const shown = await worker()
      const answered = shown.text.matchAll(/^muster_model_calls_total\{.*model="([^"]+)",outcome="answered"\}/gm)
      // Ten of the project, and work of no project.
      assert.equal([...answered].length, 11)
    })

    it('show which slots are held, and that their work is alive', async () => {
      const slots = async (state: string) =>
        (await worker()).value('muster_worker_slots', { queue: 'turn.execute', state })
      await eventually(async () => (await slots('held')) === 0)
      assert.equal(await slots('total'), 10 * CELL_COUNT)
      await double.put('held', { rules: [{ reply: { text: 'x', gate: 'held-gate' } }] })
      const agent = await app.agent({ model: 'held/m' })
      for (let turn = 0; turn < 2; turn++)
        assert.equal((await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })).status, 202)
      await eventually(async () => ((await double.gate('held-gate'))?.waiting ?? 0) === 2)
      assert.deepEqual([await slots('held'), await slots('working')], [2, 2])
      await open('held-gate')
      await eventually(async () => (await slots('held')) === 0 && (await slots('working')) === 0)
    })
  })

  describe('of work that waits', () => {
    const app = forSuite(() =>
      startAgentApp({ workers: [], actions: ACTIONS, env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } }),
    )
    const receiver = forSuite(startReceiver)
    const processes: TestProcess[] = []
    after(async () => {
      await Promise.all(processes.map(each => each.kill()))
    })

    const age = (shown: Scrape, concern: string) => shown.value('muster_work_oldest_seconds', { concern })
    /** Leaves rows without a message: waiting work is to be seen without a message. */
    const dropMessages = () => app.pool.query(rawQuery('delete from pgboss.job_common'))

    it('report the waiting time by concern, from rows as well', async () => {
      await dropMessages()
      const idle = await scrape(app.url)
      for (const concern of [
        'delivery',
        'ingestion',
        'generation',
        'orchestration',
        'trigger',
        'evaluation',
        'snapshot',
      ])
        assert.equal(age(idle, concern), 0, concern)

      const webhook = await app.key.post('/webhooks', { name: 'w', url: receiver.url, events: ['agents.updated'] })
      assert.equal(webhook.status, 201, JSON.stringify(webhook.body))
      await app.key.patch(`/agents/${app.agentId}`, { name: 'other' })
      await dropMessages()
      let shown = await scrape(app.url)
      assert.ok((age(shown, 'delivery') as number) > 0)
      assert.equal(age(shown, 'generation'), 0)

      const file = await upload(app.key, 'hello')
      assert.equal((await app.key.post('/documents/ingest', { file_id: file })).status, 202)
      await dropMessages()
      shown = await scrape(app.url)
      assert.ok((age(shown, 'ingestion') as number) > 0)
      assert.equal(age(shown, 'generation'), 0)

      const trigger = await app.key.post('/triggers', {
        name: 't',
        type: 'manual',
        target_type: 'agent',
        target_id: app.agentId,
      })
      assert.equal(trigger.status, 201, JSON.stringify(trigger.body))
      const fired = await app.key.post(`/triggers/${trigger.body.id}/fire`, { input: { prompt: 'x' }, wait: false })
      assert.equal(fired.status, 202, JSON.stringify(fired.body))
      await dropMessages()
      shown = await scrape(app.url)
      assert.ok((age(shown, 'trigger') as number) > 0)
      assert.equal(age(shown, 'generation'), 0)

      const turn = await app.key.post(`/agents/${app.agentId}/generate`, { prompt: 'x' })
      assert.equal(turn.status, 202)
      await dropMessages()
      assert.ok((age(await scrape(app.url), 'generation') as number) > 0)
      await app.key.post(`/generations/${turn.body.generation_id}/cancel`)
      assert.equal(age(await scrape(app.url), 'generation'), 0)
    })

    it('count turns of conversations, and nothing that a pause holds back', async () => {
      const conversation = await app.key.post('/conversations', {})
      assert.equal(conversation.status, 201, JSON.stringify(conversation.body))
      const path = `/conversations/${conversation.body.id}`
      assert.equal((await app.key.post(`${path}/messages`, { role: 'user', message: 'hello' })).status, 201)
      const turn = await app.key.post(`${path}/generate`, { agent_id: app.agentId })
      assert.equal(turn.status, 202, JSON.stringify(turn.body))
      await dropMessages()
      assert.ok((age(await scrape(app.url), 'generation') as number) > 0)
      await app.admin.post(`/projects/${app.projectId}/pause`, { reason: 'x' })
      assert.equal(age(await scrape(app.url), 'generation'), 0)
      await app.admin.post(`/projects/${app.projectId}/resume`)
      assert.ok((age(await scrape(app.url), 'generation') as number) > 0)
    })

    it('fall to nothing once a worker has it; slots of deliveries are free again', async () => {
      const worker = await startProcess('worker', app.databaseUrl, {
        ...{ EGRESS_ALLOW_HOSTS: '127.0.0.1', WEBHOOK_SWEEP_INTERVAL_MS: '200', GENERATION_SWEEP_SECONDS: '1' },
        ...{ CONVERSATION_SWEEP_SECONDS: '1', TRIGGER_SCHEDULER_INTERVAL_MS: '200' },
      })
      processes.push(worker)
      let release = () => {}
      const released = new Promise<void>(resolve => {
        release = resolve
      })
      receiver.answer = async (_request, response) => {
        await released
        response.end('ok')
      }
      const slots = async (state: string) => (await scrape(worker.url)).value('muster_delivery_slots', { state })
      await eventually(() => receiver.requests.length > 0)
      assert.deepEqual([await slots('held'), await slots('working'), await slots('total')], [1, 1, 250 * CELL_COUNT])
      release()
      await eventually(async () => (await slots('held')) === 0 && (await slots('working')) === 0)
      for (const concern of ['delivery', 'trigger', 'generation'])
        await eventually(async () => age(await scrape(worker.url), concern) === 0, { what: concern })
    })
  })
})
