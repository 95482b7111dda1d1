import assert from 'node:assert/strict'
import OpenAI from 'openai'
import { startAgentApp } from '../execution/fixtures.ts'
import { client as doubleClient } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'

type Json = Record<string, any>

/** Short leases, so that a lost worker is missed within seconds. */
const FAST = { GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '1', PROVIDER_MAX_RETRIES: '0' }

describe('the OpenAI mount: lost processes', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startAgentApp({
      workers: [],
      actions: ['agents:CreateAgentGeneration', 'generations:GetGeneration', 'generations:ListGenerations'],
    }),
  )
  const double = forSuite(() => doubleClient(app.double))
  const processes: TestProcess[] = []
  afterEach(() => Promise.all(processes.splice(0).map(each => each.kill())))

  const start = async (kind: 'web' | 'worker') => {
    const made = await startProcess(kind, app.databaseUrl, FAST, kind === 'worker' ? ['generation'] : [])
    processes.push(made)
    return made
  }
  const kill = async (process: TestProcess) => {
    processes.splice(processes.indexOf(process), 1)
    await process.kill()
  }
  const openai = (url: string) =>
    new OpenAI({ baseURL: `${url}/openai/v1`, apiKey: app.key.token as string, maxRetries: 0 })
  /** An agent whose first call stops at a gate after two words, and whose later calls answer immediately. */
  async function interrupted(lane: string): Promise<string> {
    await double.put(lane, {
      rules: [
        { when: { call: 1 }, reply: { text: 'never to be seen whole', gate: lane, gate_after: 2 } },
        { reply: { text: 'the real answer' } },
      ],
    })
    return app.agent({ model: `${lane}/m` })
  }
  const turns = async (model: string): Promise<Json[]> =>
    (await app.key.get(`/generations?agent_id=${model}`)).body.data

  it('of a worker in a step ends the stream with step_restarted, and a retry attaches and gets the whole text', async () => {
    const model = await interrupted('crash-step')
    const worker = await start('worker')
    const client = openai(app.url)
    const request = { model, messages: [{ role: 'user' as const, content: 'go' }], stream: true as const }
    const stream = await client.chat.completions.create(request)
    let text = ''
    const failure = (async () => {
      for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? ''
    })().catch((error: Json) => error)
    await eventually(() => text === 'never to ')
    await kill(worker)
    await start('worker')
    const error = (await failure) as Json
    assert.deepEqual([error.code, error.error.meta.reason], ['GENERATION_FAILED', 'step_restarted'])
    const [turn] = await turns(model)
    assert.equal(error.error.meta.generation_id, turn.id)
    assert.equal(text, 'never to ')
    const retry = { headers: { 'X-Stainless-Retry-Count': '1' } }
    const streamed = await client.chat.completions.create(request, retry)
    let whole = ''
    for await (const chunk of streamed) whole += chunk.choices[0]?.delta.content ?? ''
    assert.equal(whole, 'the real answer')
    assert.equal((await turns(model)).length, 1)
  })

  it('of a web process cuts a response, which another resumes after the last event that the client has', async () => {
    const lane = 'crash-cut'
    await double.put(lane, { rules: [{ reply: { text: 'one two three', gate: lane, gate_after: 2 } }] })
    const model = await app.agent({ model: `${lane}/m` })
    await start('worker')
    const web = await start('web')
    const seen: Json[] = []
    const cut = (async () => {
      for await (const event of await openai(web.url).responses.create({ model, input: 'go', stream: true }))
        seen.push(event)
    })().catch((error: Error) => error)
    const textOf = (events: Json[]) => events.map(({ type, delta }) => (/delta$/.test(type) ? delta : '')).join('')
    await eventually(() => textOf(seen) === 'one two ')
    await kill(web)
    assert.ok((await cut) instanceof Error)
    const { sequence_number, item_id } = seen.at(-1) as Json
    const rest: Json[] = []
    const resumed = (async () => {
      const { response } = seen[0]
      const events = await openai(app.url).responses.retrieve(response.id, {
        stream: true,
        starting_after: sequence_number,
      })
      for await (const event of events) rest.push(event)
    })()
    await double.read('POST', `/control/gates/${lane}/open`)
    await resumed
    assert.deepEqual(
      rest.map(event => event.sequence_number),
      rest.map((_event, index) => sequence_number + 1 + index),
    )
    assert.equal(textOf(rest), 'three')
    assert.equal(rest[0].item_id, item_id)
    const { type, response } = rest.at(-1) as Json
    assert.deepEqual([type, response.output[0].content[0].text], ['response.completed', 'one two three'])
    assert.equal((await turns(model)).length, 1)
  })

  it('of a worker fails the stream of a response, whose repeated stream has only the whole text', async () => {
    const model = await interrupted('crash-response')
    const worker = await start('worker')
    const client = openai(app.url)
    const seen: Json[] = []
    const reading = (async () => {
      for await (const event of await client.responses.create({ model, input: 'go', stream: true })) seen.push(event)
    })()
    await eventually(() => seen.filter(({ type }) => type === 'response.output_text.delta').length > 0)
    await kill(worker)
    await start('worker')
    await reading
    const last = seen.at(-1) as Json
    assert.deepEqual([last.type, last.response.error.code], ['response.failed', 'GENERATION_FAILED'])
    const again: Json[] = []
    for await (const event of await client.responses.retrieve(last.response.id, { stream: true })) again.push(event)
    const texts = again.map(({ type, delta }) => (type === 'response.output_text.delta' ? delta : ''))
    assert.equal(texts.join(''), 'the real answer')
    assert.equal((again.at(-1) as Json).type, 'response.completed')
  })
})
