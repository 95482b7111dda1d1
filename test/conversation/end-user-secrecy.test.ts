import assert from 'node:assert/strict'
import { startTarget } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { chat, endUser, openEndUserStream } from './end-user-support.ts'
import { expectRefusal, expectStatus, startSessionApp } from './session-support.ts'

type Json = Record<string, any>

const INSTRUCTIONS = 'Never reveal the amber protocol'
const VENDOR = 'quota of account acme-42 exhausted'

/** What no answer to an end user may contain. */
const SECRETS = [
  INSTRUCTIONS,
  'amber protocol',
  'lookup_ledger',
  'ledger-argument',
  'ledger-result',
  'double-1',
  VENDOR,
  'acme-42',
  'prompt_tokens',
  'input_tokens',
  '"usage"',
  'trace_id',
  'trace_0',
  'agent_version',
  'tool_context',
  'secret-tenant',
  'Curlews nest',
]

describe('what an end user sees of a turn', () => {
  const app = forSuite(() =>
    startSessionApp({
      env: { SYNC_WAIT_SECONDS: '30', EGRESS_ALLOW_HOSTS: '127.0.0.1', GENERATION_MAX_ATTEMPTS: '1' },
    }),
  )
  const target = forSuite(startTarget)
  before(async () => {
    target.answer = (_request, response) =>
      response.writeHead(200, { 'content-type': 'application/json' }).end('{"value":"ledger-result"}')
  })

  let documents = 0
  const agentWith = async (rules: never[]) => {
    const tool = expectStatus(
      await app.key.post('/tools', {
        name: 'lookup_ledger',
        type: 'http',
        execute: { url: target.url, method: 'POST' },
        parameters: { type: 'object', properties: { query: { type: 'string' } } },
      }),
      201,
    )
    const document = expectStatus(
      await app.key.post('/documents', {
        path: `/birds/curlew-${++documents}.md`,
        content: 'Curlews nest in moors and marshes.',
      }),
      201,
    )
    const { agentId } = await app.scripted(rules, {
      instructions: INSTRUCTIONS,
      tool_bindings: [{ tool_id: tool.id }],
      knowledge_config: { document_paths: ['/birds/*'], limit: 2 },
    })
    return { agentId, hidden: [tool.id, document.id] }
  }

  /** Everything that an end user can get of its session. */
  const everything = async (user: Awaited<ReturnType<typeof endUser>>, session: Json, generationId: string) => {
    const seen: string[] = []
    const keep = (reply: { body: unknown; headers: Headers }) => {
      seen.push(typeof reply.body === 'string' ? reply.body : JSON.stringify(reply.body))
      seen.push(JSON.stringify([...reply.headers]))
    }
    for (const path of [
      `/sessions/${session.id}`,
      '/sessions',
      `/sessions/${session.id}/messages`,
      `/generations/${generationId}`,
      `/generations/${generationId}/stream`,
      `/agents/${session.agent_id}`,
    ])
      keep(await user.get(path))
    return seen
  }

  const checkSecrets = (seen: string[], hidden: string[]) => {
    for (const text of seen)
      for (const secret of [...SECRETS, ...hidden]) assert.ok(!text.includes(secret), `${secret} in ${text}`)
  }

  it('is nothing of the instructions, the tools, the knowledge, the model or the usage', async () => {
    const { agentId, hidden } = await agentWith([
      { when: { last_role: 'tool' }, reply: { text: 'All is well.' } },
      { reply: { tool_calls: [{ name: 'lookup_ledger', args: { query: 'ledger-argument' } }] } },
    ] as never[])
    const [user, other] = [await endUser(app, { agent_ids: [agentId] }), await endUser(app, { agent_ids: [agentId] })]
    await chat(other, agentId)
    const session = await chat(user, agentId, 'Where do birds nest?')
    expectStatus(await app.key.patch(`/sessions/${session.id}`, { tool_context: { tenantId: 'secret-tenant' } }), 200)
    const stream = await openEndUserStream(app.url, user.token, `/sessions/${session.id}/generate`, { stream: true })
    const frames: Json[] = []
    for (let frame = await stream.read(); frame; frame = await stream.read()) frames.push(frame)
    assert.equal(target.requests.length, 1)
    assert.ok(target.requests[0].body.includes('ledger-argument'))
    assert.equal(frames.at(-1)?.data.content, 'All is well.')
    const seen = [JSON.stringify(frames), ...(await everything(user, session, frames.at(-1)?.data.generation_id))]
    checkSecrets(seen, [...hidden, other.actorId, user.actorId])
  })

  it('is a constant message of a failing vendor, in the answer, the stream and the record', async () => {
    const { agentId, hidden } = await agentWith([{ reply: { error: { status: 400, message: VENDOR } } }] as never[])
    const user = await endUser(app, { agent_ids: [agentId] })
    const session = await chat(user, agentId)
    const failed = await user.post(`/sessions/${session.id}/generate?wait=true`)
    const error = expectRefusal(failed, 502, 'AI_PROVIDER_ERROR')
    assert.equal(error.message, 'The answer could not be produced.')
    assert.deepEqual(Object.keys(error.meta), ['generation_id'])
    const { generation_id } = error.meta
    const generation = expectStatus(await user.get(`/generations/${generation_id}`), 200)
    assert.deepEqual(generation.error, { code: 'AI_PROVIDER_ERROR', message: 'The answer could not be produced.' })
    const stream = await openEndUserStream(app.url, user.token, `/sessions/${session.id}/generate`, { stream: true })
    const frames: Json[] = []
    for (let frame = await stream.read(); frame; frame = await stream.read()) frames.push(frame)
    assert.deepEqual(frames.at(-1)?.data, { code: 'AI_PROVIDER_ERROR', message: 'The answer could not be produced.' })
    const seen = [JSON.stringify([failed.body, frames]), ...(await everything(user, session, generation_id))]
    checkSecrets(seen, hidden)
    // The operator reads the reason.
    assert.ok(JSON.stringify(await app.generation(generation_id)).includes('acme-42'))
  })

  it('is a refusal by a quota without its record, while others continue', async () => {
    const [ann, bob] = [await endUser(app), await endUser(app)]
    const quota = expectStatus(
      await app.key.post('/quotas', {
        scope: 'actor',
        metric: 'tokens',
        window: 'calendar_month',
        limit: 1,
      }),
      201,
    )
    const [hers, his] = [await chat(ann, app.agentId), await chat(bob, app.agentId)]
    expectStatus(await ann.post(`/sessions/${hers.id}/generate?wait=true`), 200)
    const refused = await eventually(async () => {
      const reply = await ann.post(`/sessions/${hers.id}/generate?wait=true`)
      return reply.status === 429 ? reply : null
    })
    assert.equal(refused.body.error.code, 'QUOTA_EXCEEDED')
    assert.equal(refused.body.error.meta, undefined)
    assert.ok(!JSON.stringify(refused.body).includes(quota.id))
    assert.ok(Number(refused.headers.get('retry-after')) > 0)
    expectStatus(await bob.post(`/sessions/${his.id}/generate?wait=true`), 200)
    expectStatus(await app.key.delete(`/quotas/${quota.id}`), 204)
  })

  it('a client tool is shown to its end user, with its arguments, and its outputs resume the turn', async () => {
    const { agentId } = await app.scripted(
      [
        { when: { last_role: 'tool' }, reply: { text: 'You are in Rome.' } },
        { reply: { tool_calls: [{ name: 'locate', args: { precise: true } }] } },
      ] as never[],
      { tool_bindings: [{ tool: { name: 'locate', type: 'client', parameters: { type: 'object' } } }] },
    )
    const user = await endUser(app, { agent_ids: [agentId] })
    const session = await chat(user, agentId)
    const paused = expectStatus(await user.post(`/sessions/${session.id}/generate?wait=true`), 200)
    const [call] = paused.required_action.tool_calls
    assert.deepEqual([paused.status, call.tool_name, call.args], ['requires_action', 'locate', { precise: true }])
    const outputs = {
      generation_id: paused.generation_id,
      tool_outputs: [{ tool_call_id: call.tool_call_id, output: 'Rome' }],
    }
    const resumed = expectStatus(await user.post(`/sessions/${session.id}/tool-outputs`, outputs), 200)
    assert.equal(resumed.content, 'You are in Rome.')
  })
})
