import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { forSuite } from '../support/suite.ts'
import { processorTime } from '../support/timing.ts'
import { startAgentApp } from './fixtures.ts'

const frame = (delta: object, finish_reason: string | null = null) =>
  `data: ${JSON.stringify({ id: 'x', object: 'chat.completion.chunk', created: 1, model: 'm', choices: [{ index: 0, delta, finish_reason }] })}\n\n`

const call = (index: number, id: string | undefined, args: string) =>
  frame({
    tool_calls: [
      { index, ...(id && { id, type: 'function' }), function: { ...(id && { name: 'f' }), arguments: args } },
    ],
  })

function* deltas(count: number): Generator<string> {
  yield call(0, 'c', '{"a":"')
  for (let sent = 0; sent < count; sent++) yield call(0, undefined, 'x')
}

function* calls(count: number): Generator<string> {
  for (let index = 0; index < count; index++) yield call(index, `c${index}`, '{}')
}

function* texts(count: number): Generator<string> {
  for (let sent = 0; sent < count; sent++) yield frame({ content: 'x'.repeat(1024 * 1024) })
}

/** Processor time that an answer up to its limits may take on a busy machine. */
const MOST_MS = 15_000

describe('an answer in many parts', () => {
  const app = forSuite(() => startAgentApp({ actions: ['agents:*', 'generations:*'] }))
  const vendor = forSuite(async () =>
    createServer(async (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      for (const piece of answer()) {
        if (response.destroyed) return
        sent++
        if (!response.write(piece)) await new Promise(resolve => response.once('drain', resolve).once('close', resolve))
      }
      response.end(`${frame({}, 'tool_calls')}data: [DONE]\n\n`)
    }),
  )
  let answer: () => Generator<string>
  let sent = 0

  before(async () => {
    await new Promise<void>(resolve => vendor.listen(0, '127.0.0.1', resolve))
  })

  const generate = async () => {
    const base_url = `http://127.0.0.1:${(vendor.address() as AddressInfo).port}/v1`
    const settings = { project_id: app.projectId, name: `v${Math.random()}`, provider: 'custom', default_model: 'm' }
    const provider = await app.admin.post('/ai-providers', { ...settings, base_url })
    const agent = await app.agent({ ai_provider_id: provider.body.id })
    const { pid } = app.worker as { pid: number }
    const before = processorTime(pid)
    sent = 0
    const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt: 'x', stream: true })
    return { text: String(body), used: processorTime(pid) - before }
  }

  for (const [name, parts, most] of [
    ['200,000 pieces of arguments', () => deltas(200_000), 200_000],
    ['5,000 calls', () => calls(5000), 5000],
    ['40 MB of text', () => texts(40), 40],
  ] as const)
    it(`fails the turn with an error: ${name}`, async () => {
      answer = parts
      const { text, used } = await generate()
      assert.match(text, /AI_PROVIDER_ERROR/)
      assert.match(text, /the answer has more than [\d]+ (tool calls|pieces of arguments|characters)/)
      assert.ok(used < MOST_MS, `${used} ms`)
      assert.ok(sent <= most)
    })

  it('is accepted with long arguments in small pieces', async () => {
    answer = function* () {
      yield* deltas(20_000)
      yield call(0, undefined, '"}')
    }
    const { text, used } = await generate()
    assert.doesNotMatch(text, /more than/)
    assert.ok(used < MOST_MS, `${used} ms`)
  })
})
