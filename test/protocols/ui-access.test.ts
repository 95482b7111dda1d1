import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { lastAssistantMessageIsCompleteWithApprovalResponses } from 'ai'
import { endUser } from '../conversation/end-user-support.ts'
import { type SessionApp, startSessionApp } from '../conversation/session-support.ts'
import { json, startTarget } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { pngHeader } from '../support/images.ts'
import { refusalOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { calls, said } from './ag-ui-support.ts'
import { asking, openChat, partsOf, requestUi, transcript } from './ui-support.ts'

const PNG = `data:image/png;base64,${pngHeader(2, 2).toString('base64')}`

describe('callers of chats of the AI SDK', function () {
  this.timeout(60_000)
  let app: SessionApp
  const target = forSuite(startTarget)
  let agentId: string

  before(async () => {
    target.answer = json({ refunded: true })
    app = await startSessionApp({
      env: {
        EGRESS_ALLOW_HOSTS: '127.0.0.1',
        STREAM_PING_INTERVAL_MS: '600000',
        CORS_ALLOWED_ORIGINS: 'https://page.example',
      },
      actions: ['actors:*', 'agents:*', 'approvals:*', 'files:*', 'generations:*', 'guardrails:*', 'sessions:*'],
    })
    agentId = await app.agent()
  })
  beforeEach(() => {
    target.requests.length = 0
  })
  after(async () => {
    await app.close()
  })

  const user = (fields: object = {}) => endUser(app, { agent_ids: [agentId], ...fields })

  /** A chat of an end user whose agent needs its approval for refunds. */
  const openWithApproval = async (scopes = ['chat', 'approvals']) => {
    const document = { class: 'C', approver: 'end_user', end_user_arguments: ['amount'] }
    const rule = await app.key.post('/guardrails', { name: 'rule', document })
    const refunding = await app.agent({
      guardrail_ids: [rule.body.id],
      tool_bindings: [{ tool: { name: 'refund', execute: { method: 'POST', url: `${target.url}/refund` } } }],
    })
    const { token } = await endUser(app, { agent_ids: [refunding], scopes })
    const options = { agentId: refunding, token }
    return openChat(app, { ...options, sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses })
  }
  const refund = (amount = 5) => calls('refund', { amount, account: 'secret-1' })

  it('decide calls that need the approval of the end user, and see their outcome', async () => {
    for (const approved of [true, false]) {
      const chat = await openWithApproval()
      await chat.sendMessage({ text: said(refund(), { text: 'It waits.' }) })
      assert.equal(chat.error, undefined)
      const [call] = partsOf(chat, 'dynamic-tool')
      assert.deepEqual([call.toolName, call.state, call.input], ['approval', 'approval-requested', { amount: 5 }])
      assert.equal(JSON.stringify(chat.messages.slice(1)).includes('secret-1'), false)
      assert.equal(target.requests.length, approved ? 0 : 1)
      const id = chat.messages[1].id
      await chat.addToolApprovalResponse({ id: call.approval.id, approved })
      const state = approved ? 'output-available' : 'output-denied'
      await eventually(() => (partsOf(chat, 'dynamic-tool')[0].state === state && chat.status === 'ready') || null, {
        what: state,
      })
      assert.deepEqual([chat.messages.length, chat.messages[1].id, chat.error], [2, id, undefined])
      assert.equal(target.requests.length, 1)
      assert.ok((transcript(chat)[1] as string).length > 'assistant: It waits.'.length)
      await chat.sendMessage({ text: said({ text: 'thanks' }) })
      assert.equal(transcript(chat).at(-1), 'assistant: thanks')
    }
  })

  it('may continue without a decision, and decide one of two calls', async () => {
    const chat = await openWithApproval()
    const both = { tool_calls: [refund(1), refund(2)].flatMap((each: any) => each.tool_calls) }
    await chat.sendMessage({ text: said(both, { text: 'Both wait.' }) })
    const [first] = partsOf(chat, 'dynamic-tool')
    await chat.addToolApprovalResponse({ id: first.approval.id, approved: true })
    assert.equal(target.requests.length, 0)
    await chat.sendMessage()
    await eventually(() => target.requests.length === 1 || null)
    await chat.sendMessage({ text: said({ text: 'later' }) })
    assert.deepEqual([chat.error, transcript(chat).at(-1)], [undefined, 'assistant: later'])
    await chat.sendMessage({ text: said({ text: 'still' }) })
    assert.equal(transcript(chat).at(-1), 'assistant: still')
  })

  it('see only that a call waits without the scope of approvals', async () => {
    const chat = await openWithApproval(['chat'])
    await chat.sendMessage({ text: said(refund(), { text: 'It waits.' }) })
    const [{ data }] = partsOf(chat, 'data-approval')
    assert.equal(data.status, 'pending')
    const forged = { id: randomUUID(), role: 'assistant', parts: [decided(data.id)] }
    const body = { id: randomUUID(), messages: [forged], trigger: 'submit-message' }
    assert.deepEqual(refusalOf(await requestUi(app, { ...(await user()), agentId, body })), [403, 'FORBIDDEN'])
    const other = await user({ scopes: ['chat', 'approvals'] })
    const { chunks } = await requestUi(app, { ...other, agentId, body })
    assert.deepEqual([chunks.map(({ type }) => type), target.requests.length], [['error'], 0])
  })
  const decided = (id: string) => ({
    type: 'dynamic-tool',
    toolName: 'approval',
    toolCallId: id,
    state: 'approval-responded',
    input: {},
    approval: { id, approved: true },
  })

  it('send images as files of the end user, and no URLs', async () => {
    const scripted = await app.scripted([])
    const { token } = await endUser(app, { agent_ids: [scripted.agentId], scopes: ['chat', 'files'] })
    const chat = openChat(app, { agentId: scripted.agentId, token })
    const file = { type: 'file' as const, mediaType: 'image/png', filename: 'cat.png', url: PNG }
    await chat.sendMessage({ text: 'A picture', files: [file] })
    assert.equal(chat.error, undefined)
    const [{ body }] = await scripted.requests()
    const content = body.messages.at(-1).content
    assert.deepEqual(content.map(({ type }: any) => type).sort(), ['image_url', 'text', 'text'])
    const { messages } = (await requestUi(app, { agentId: scripted.agentId, token, path: `/${chat.id}` })).body
    assert.match(messages[0].parts[0].url, /^file_/)
    await chat.sendMessage({ text: 'Another', files: [{ ...file, url: `${target.url}/cat.png` }] })
    assert.match(String((chat as { error?: Error }).error?.message), /URLs/)
    assert.equal(target.requests.length, 0)
  })

  it('give the model tools and context of the page, if the agent takes them', async () => {
    const scripted = await app.scripted([], { accept_client_tools: true })
    const { token } = await endUser(app, { agent_ids: [scripted.agentId] })
    const tools = [{ name: 'where', description: 'Place', parameters: { type: 'object' } }]
    const context = [{ description: 'Page', value: 'checkout' }]
    const chat = openChat(app, { agentId: scripted.agentId, token, body: { tools, context, other: 1 } })
    await chat.sendMessage({ text: 'x' })
    const [{ body }] = await scripted.requests()
    assert.deepEqual(
      body.tools.map((tool: any) => tool.function.name),
      ['where'],
    )
    assert.match(JSON.stringify(body.messages), /Page: checkout/)
  })

  it('find neither other agents nor chats of others', async () => {
    const [ann, bob] = [await user(), await user()]
    const other = await app.agent()
    const body = asking(said({ text: 'ok' }))
    const of = (path: string, token: string | null, method?: string) => requestUi(app, { agentId, path, token, method })
    assert.deepEqual(refusalOf(await requestUi(app, { ...ann, agentId: other, body })), [404, 'RESOURCE_NOT_FOUND'])
    const first = await requestUi(app, { ...ann, agentId, body })
    const session = first.headers.get('x-svc-session-id') as string
    const second = await requestUi(app, { ...bob, agentId, body })
    assert.notEqual(second.headers.get('x-svc-session-id'), session)
    for (const id of [session, 'sess_unknown', 'unknown']) {
      assert.equal((await of(`/${id}/stream`, bob.token)).status, 204)
      assert.equal((await of(`/${id}/stop`, bob.token, 'POST')).status, 204)
      assert.deepEqual((await of(`/${id}`, bob.token)).body, { id, messages: [] })
    }
    assert.deepEqual(refusalOf(await requestUi(app, { ...bob, agentId, body: { ...body, id: session } })), [
      404,
      'RESOURCE_NOT_FOUND',
    ])
    assert.equal((await of(`/${session}`, ann.token)).body.messages.length, 2)
    for (const token of [null, 'nothing']) assert.deepEqual(refusalOf(await of('/x', token)), [401, 'UNAUTHORIZED'])
  })

  it('do not replace messages in a chat by the ID of its session', async () => {
    const ann = await user()
    const body = asking(said({ text: 'ok' }))
    const session = (await requestUi(app, { ...ann, agentId, body })).headers.get('x-svc-session-id') as string
    const again = await requestUi(app, {
      ...ann,
      agentId,
      body: { ...body, id: session, trigger: 'regenerate-message' },
    })
    assert.deepEqual(
      again.chunks.map(({ type }) => type),
      ['error'],
    )
    assert.equal((await ann.get('/sessions')).body.total, 1)
  })

  it('regenerate no answer with a token of listed sessions or of a closed session', async () => {
    const ann = await user()
    const body = asking(said({ text: 'ok' }))
    const session = (await requestUi(app, { ...ann, agentId, body })).headers.get('x-svc-session-id') as string
    const bound = await endUser(app, { agent_ids: [agentId], session_ids: [session] }, ann.actorId)
    const again = { ...body, trigger: 'regenerate-message' }
    assert.deepEqual(refusalOf(await requestUi(app, { ...bound, agentId, body: again })), [403, 'FORBIDDEN'])
    assert.equal((await ann.patch(`/sessions/${session}`, { status: 'closed' })).status, 200)
    const refused = await requestUi(app, { ...ann, agentId, body: again })
    assert.match(refused.chunks[0].errorText, /closed/)
  })

  it('are limited by their tokens', async () => {
    const ann = await user({ limits: { messages_per_hour: 2 } })
    const statuses = []
    for (let count = 0; count < 3; count++)
      statuses.push((await requestUi(app, { ...ann, agentId, body: asking(said({ text: 'ok' })) })).status)
    assert.deepEqual(statuses, [200, 200, 429])
    const bob = await user({ limits: { requests_per_minute: 2 } })
    const reads = []
    for (let count = 0; count < 3; count++)
      reads.push((await requestUi(app, { ...bob, agentId, path: `/${randomUUID()}/stream` })).status)
    assert.deepEqual(reads, [204, 204, 429])
  })

  it('name the field of a malformed request', async () => {
    const { token } = await user()
    const valid = asking('x')
    const message = valid.messages[0]
    const cases: [unknown, string][] = [
      [null, 'id'],
      [{ ...valid, id: '' }, 'id'],
      [{ ...valid, id: 'x'.repeat(300) }, 'id'],
      [{ ...valid, messages: [] }, 'messages'],
      [{ ...valid, messages: 'x' }, 'messages'],
      [{ ...valid, messages: [{ ...message, parts: null }] }, 'messages[0].parts'],
      [{ ...valid, messages: [{ ...message, role: 'tool' }] }, 'messages[0].role'],
      [{ ...valid, messages: [{ ...message, id: 1 }] }, 'messages[0].id'],
      [
        { ...valid, messages: [{ ...message, parts: Array(101).fill({ type: 'text', text: 'x' }) }] },
        'messages[0].parts',
      ],
      [{ ...valid, messages: [{ ...message, parts: [{ type: 'file' }] }] }, 'messages'],
      [
        { ...valid, messages: [{ ...message, parts: [{ type: 'file', mediaType: 'a/b', url: 'data:,%' }] }] },
        'messages',
      ],
      [{ ...valid, trigger: 'other' }, 'trigger'],
      [{ ...valid, tools: [{ name: '' }] }, 'tools[0].name'],
      [{ ...valid, context: 'x' }, 'context'],
      [{ ...valid, trigger: 'regenerate-message', messages: [{ ...message, role: 'assistant' }] }, 'messages'],
      [
        { ...valid, messages: [{ ...message, parts: [{ type: 'text', text: 'a\u0000' }] }] },
        'messages[0].parts[0].text',
      ],
    ]
    for (const [body, path] of cases) {
      const { status, body: refused } = await requestUi(app, { token, agentId, body })
      assert.equal(status, 400, JSON.stringify([body, refused]))
      assert.equal(refused.error.meta.problems[0].path, path, JSON.stringify([body, refused]))
    }
    const strange = [
      { type: 'tool-', state: 'output-available' },
      { type: 'dynamic-tool', state: 'approval-responded' },
    ]
    const reply = await requestUi(app, {
      token,
      agentId,
      body: { ...valid, messages: [{ id: 'a', role: 'assistant', parts: strange }, message] },
    })
    assert.equal(reply.chunks.at(-1)?.type, 'finish')
    const empty = asking('', { messages: [{ id: randomUUID(), role: 'user', parts: [] }] })
    assert.equal((await requestUi(app, { token, agentId, body: empty })).chunks[0]?.type, 'error')
  })

  it('use the methods of the paths only, from the pages that may', async () => {
    const { token } = await user()
    const statusOf = async (method: string, path: string) =>
      (await requestUi(app, { token, agentId, method, path })).status
    assert.deepEqual(
      await Promise.all([
        statusOf('GET', ''),
        statusOf('POST', '/x/stream'),
        statusOf('GET', '/x/stop'),
        statusOf('PUT', '/x'),
      ]),
      [405, 405, 405, 405],
    )
    assert.deepEqual(await Promise.all([statusOf('GET', '/x/other'), statusOf('GET', '/x/stream/y')]), [404, 404])
    const preflight = await fetch(`${app.url}/ui/v1/chat/${agentId}`, {
      method: 'OPTIONS',
      headers: {
        origin: 'https://page.example',
        'access-control-request-method': 'POST',
        'access-control-request-headers': 'authorization,content-type,user-agent',
      },
    })
    assert.equal(preflight.headers.get('access-control-allow-origin'), 'https://page.example')
    assert.match(String(preflight.headers.get('access-control-allow-headers')), /authorization/)
    assert.equal(await statusOf('GET', `/${encodeURIComponent('a/b ü')}/stream`), 204)
  })

  it('of keys act for an end user named in a header', async () => {
    const token = app.key.token as string
    const body = asking(said({ text: 'ok' }))
    const sent = await requestUi(app, { token, agentId, body, headers: { 'X-Svc-Actor': 'ann' } })
    const session = (await app.key.get(`/sessions/${sent.headers.get('x-svc-session-id')}`)).body
    const actor = (await app.key.get(`/actors/${session.actor_id}`)).body
    assert.equal(actor.external_id, 'ann')
    const other = await requestUi(app, { token, agentId, body, headers: { 'X-Svc-Actor': 'bob' } })
    assert.notEqual(other.headers.get('x-svc-session-id'), session.id)
  })
})
