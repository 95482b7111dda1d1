import assert from 'node:assert/strict'
import { endUser } from '../conversation/end-user-support.ts'
import { startSessionApp } from '../conversation/session-support.ts'
import { startTarget } from '../execution/tool-target.ts'
import type { TestProject } from '../support/app.ts'
import { pngHeader } from '../support/images.ts'
import { forSuite } from '../support/suite.ts'
import { AGENT_ACTIONS, ENV, post, rpc, wireMessage } from './a2a-support.ts'
import { said } from './ag-ui-support.ts'

const PNG = pngHeader(2, 2).toString('base64')

describe('the A2A mount', () => {
  const app = forSuite(() =>
    startSessionApp({
      env: ENV,
      actions: [
        ...AGENT_ACTIONS,
        'actors:*',
        'agents:*',
        'generations:*',
        'sessions:*',
        'files:UploadFile',
        'files:DownloadFile',
      ],
    }),
  )
  let open: string
  let hidden: string
  let closed: string
  let other: TestProject

  before(async () => {
    const secret = {
      instructions: 'Top secret instructions',
      tool_bindings: [{ tool: { name: 'vault', type: 'client' } }],
    }
    const skills = [{ id: 's', name: 'Skill', description: 'Shown', tags: ['t'] }]
    open = await app.agent({ ...secret, description: 'Help', a2a: { enabled: true, public_card: true, skills } })
    hidden = await app.agent({ ...secret, a2a: { enabled: true } })
    closed = await app.agent({ a2a: { enabled: false, public_card: true } })
    other = await app.projectWith(AGENT_ACTIONS)
  })

  const card = (id: string, headers: Record<string, string> = {}) =>
    fetch(`${app.url}/a2a/${id}/.well-known/agent-card.json`, { headers })
  const bearer = ({ token }: { token: string | null }) => ({ authorization: `Bearer ${token}` })

  it('shows a public card to anybody, and another to credentials that may see the agent', async () => {
    const shown = await card(open)
    const text = await shown.text()
    assert.deepEqual([shown.status, shown.headers.get('cache-control')], [200, 'public, max-age=300'])
    for (const word of ['secret', 'vault', 'double', 'instructions']) assert.equal(text.includes(word), false, word)
    const found = JSON.parse(text)
    assert.deepEqual([found.description, found.skills[0].description], ['Help', 'Shown'])
    const tag = shown.headers.get('etag') as string
    assert.equal((await card(open, { 'if-none-match': tag })).status, 304)
    assert.equal((await card(hidden)).status, 401)
    assert.equal((await card(hidden, bearer(app.key))).status, 200)
    assert.equal((await card(hidden, bearer(other.key))).status, 404)
  })

  it('does not exist without the opt-in of the agent, nor without the setting', async () => {
    const unknown = 'agent_01k5p3vd7r9hj2x8m4qcw6tz0e'
    for (const id of [closed, unknown, app.agentId]) {
      assert.equal((await card(id, bearer(app.key))).status, 404, id)
      assert.equal((await rpc(app, app.key, id, 'SendMessage', wireMessage([{ text: 'x' }]))).status, 404, id)
      assert.equal((await post(app, app.key, `/a2a/${id}/message:send`, wireMessage([{ text: 'x' }]))).status, 404, id)
    }
    assert.equal((await rpc(app, other.key, open, 'ListTasks')).status, 404)
    assert.equal((await rpc(app, { token: null }, open, 'ListTasks')).status, 401)
    const { services } = app
    const { config } = services as { config: { A2A_MOUNT: boolean } }
    config.A2A_MOUNT = false
    assert.equal((await card(open)).status, 404)
    assert.equal((await rpc(app, app.key, open, 'ListTasks')).status, 404)
    config.A2A_MOUNT = true
  })

  it('refuses tokens of end users', async () => {
    const user = await endUser(app, { agent_ids: [open] })
    assert.equal((await rpc(app, user, open, 'SendMessage', wireMessage([{ text: 'x' }]))).status, 403)
    assert.equal((await card(hidden, bearer(user))).status, 403)
  })

  it('refuses other versions, batches, notifications and unknown methods', async () => {
    for (const version of ['', '0.3', '2.0']) {
      const refused = await rpc(app, app.key, open, 'ListTasks', {}, { 'a2a-version': version })
      assert.equal(refused.body.error.code, -32009, version)
    }
    const rest = await fetch(`${app.url}/a2a/${open}/tasks`, { headers: bearer(app.key) })
    assert.deepEqual(
      [rest.status, ((await rest.json()) as any).error.details[0].reason],
      [400, 'VERSION_NOT_SUPPORTED'],
    )
    const request = { jsonrpc: '2.0', id: 1, method: 'ListTasks' }
    const batch = await post(app, app.key, `/a2a/${open}`, Array(10_000).fill(request))
    assert.deepEqual([batch.body.error.code, batch.body.id], [-32600, null])
    assert.equal(
      (await post(app, app.key, `/a2a/${open}`, { jsonrpc: '2.0', method: 'ListTasks' })).body.error.code,
      -32600,
    )
    for (const method of ['message/send', 'constructor', 'toString'])
      assert.equal((await rpc(app, app.key, open, method)).body.error.code, -32601, method)
    assert.equal((await rpc(app, app.key, open, 'GetExtendedAgentCard')).body.error.code, -32007)
  })

  it('answers for foreign contexts and tasks exactly as for unknown ones', async () => {
    const sent = await rpc(app, app.key, open, 'SendMessage', wireMessage([{ text: said({ text: 'mine' }) }]))
    const { id, contextId } = sent.body.result.task
    const policy = (await app.admin.get(`/project-keys?project_id=${app.projectId}`)).body.data[0].policy_ids
    const made = await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: policy })
    const stranger = { token: made.body.secret as string }
    const session = (await app.key.post('/sessions', { agent_id: open })).body.id
    const plain = ({ body }: { body: any }, known: string) => JSON.stringify(body.error).replaceAll(known, 'ID')
    const missing = { task: 'gen_01k5p3vd7r9hj2x8m4qcw6tz0e', context: 'sess_01k5p3vd7r9hj2x8m4qcw6tz0e' }
    const methods = ['GetTask', 'CancelTask', 'SubscribeToTask']
    for (const method of methods) {
      const unknown = await rpc(app, stranger, open, method, { id: missing.task })
      assert.equal(unknown.body.error.code, -32001)
      assert.equal(plain(await rpc(app, stranger, open, method, { id }), id), plain(unknown, missing.task), method)
      assert.equal((await rpc(app, app.key, hidden, method, { id })).body.error.code, -32001)
    }
    const inContext = (key: { token: string | null }, context: string) =>
      rpc(app, key, open, 'SendMessage', wireMessage([{ text: 'x' }], { contextId: context }))
    const unknown = await inContext(app.key, missing.context)
    assert.equal(unknown.body.error.code, -32001)
    for (const [key, context] of [
      [stranger, contextId],
      [app.key, session],
    ] as const)
      assert.equal(plain(await inContext(key, context), context), plain(unknown, missing.context))
    const config = await rpc(app, stranger, open, 'CreateTaskPushNotificationConfig', {
      taskId: id,
      url: 'http://127.0.0.1:1/',
    })
    assert.equal(config.body.error.code, -32001)
    assert.equal((await rpc(app, stranger, open, 'ListTasks')).body.result.totalSize, 0)
    assert.equal((await app.admin.get(`/sessions/${contextId}/messages`)).body.total, 2)
  })

  it('refuses malformed parts with the code of the platform in the data', async () => {
    const cases: [object[], number][] = [
      [[], -32602],
      [[{ text: 'a', data: 1 }], -32602],
      [[{ raw: '!!', mediaType: 'image/png' }], -32602],
      [[{ raw: PNG }], -32005],
      [[{ raw: Buffer.from('<svg/>').toString('base64'), mediaType: 'image/svg+xml' }], -32005],
      [[{ url: 'http://169.254.169.254/latest.png' }], -32005],
      [Array(17).fill({ text: 'a' }), -32602],
      [[{ text: 'x'.repeat(262_145) }], -32602],
      [[{ raw: 'A'.repeat(28 * 1024 * 1024), mediaType: 'image/png' }], -32602],
    ]
    for (const [parts, code] of cases) {
      const { body } = await rpc(app, app.key, open, 'SendMessage', wireMessage(parts))
      assert.equal(body.error?.code, code, JSON.stringify(body).slice(0, 500))
      assert.equal(typeof body.error.data[0].metadata.code, 'string')
    }
    const broken = await fetch(`${app.url}/a2a/${open}`, {
      method: 'POST',
      headers: { ...bearer(app.key), 'a2a-version': '1.0' },
      body: '{"jsonrpc"',
    })
    assert.equal(((await broken.json()) as any).error.code, -32700)
  })

  it('fetches no image for a caller that may not upload files', async () => {
    const target = await startTarget()
    try {
      const resource = [`srn:${app.projectId}:*:*`]
      const document = { statement: [{ effect: 'Allow', action: AGENT_ACTIONS, resource }] }
      const { id } = (await app.admin.post('/policies', { document })).body
      const { secret } = (await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [id] })).body
      const message = wireMessage([{ url: `${target.url}/cat.png` }])
      const refused = await rpc(app, { token: secret }, open, 'SendMessage', message)
      assert.deepEqual([refused.status, refused.body.error.data[0].metadata.code], [403, 'FORBIDDEN'])
      assert.equal(target.requests.length, 0)
    } finally {
      await target.close()
    }
  })

  it('gives the model images and data, and stores a file of a repeated message once', async () => {
    const scripted = await app.scripted([{ reply: { text: 'seen' } }] as never, { a2a: { enabled: true } })
    const body = wireMessage([
      { text: 'look' },
      { data: { n: 7 } },
      { raw: PNG, mediaType: 'image/png', filename: 'cat.png' },
    ])
    const sent = await rpc(app, app.key, scripted.agentId, 'SendMessage', body)
    assert.equal(sent.body.result?.task?.status?.state, 'TASK_STATE_COMPLETED', JSON.stringify(sent.body))
    await rpc(app, app.key, scripted.agentId, 'SendMessage', body)
    const requests = await scripted.requests()
    assert.equal(requests.length, 1)
    const text = JSON.stringify(requests[0].body.messages)
    assert.equal(text.includes('image_url') && text.includes('{\\"n\\":7}'), true, text.slice(0, 800))
    const { total } = (await app.admin.get(`/files?project_id=${app.projectId}&path_prefix=/a2a`)).body
    assert.equal(total, 1)
    const concurrent = wireMessage([{ raw: PNG, mediaType: 'image/png' }])
    const replies = await Promise.all(
      [1, 2, 3].map(() => rpc(app, app.key, scripted.agentId, 'SendMessage', concurrent)),
    )
    const ids = replies.map(reply => reply.body.result?.task.id ?? JSON.stringify(reply.body))
    assert.deepEqual(ids, [ids[0], ids[0], ids[0]])
  })
})
