import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { endUser } from '../conversation/end-user-support.ts'
import { type SessionApp, startSessionApp } from '../conversation/session-support.ts'
import { startTarget } from '../execution/tool-target.ts'
import { pngHeader } from '../support/images.ts'
import { pdf } from '../support/pdf.ts'
import { forSuite } from '../support/suite.ts'
import { CHAT_ACTIONS, postRun, said, ThreadClient, types } from './ag-ui-support.ts'

const PNG = pngHeader(2, 2)
const inline = (bytes: Buffer, mimeType: string) => ({ type: 'data', value: bytes.toString('base64'), mimeType })
const image = (source: object, fields: object = {}) => ({ type: 'image', source, ...fields })
const document = (source: object, fields: object = {}) => ({ type: 'document', source, ...fields })
const text = (value: string) => ({ type: 'text', text: value })

describe('images and documents of AG-UI clients', () => {
  let app: SessionApp
  const target = forSuite(startTarget)
  let agentId: string
  let requests: () => Promise<any[]>

  before(async () => {
    target.answer = (_request, response) => response.writeHead(200, { 'content-type': 'image/png' }).end(PNG)
    app = await startSessionApp({
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' },
      actions: ['actors:*', 'agents:*', 'files:*', 'generations:*', 'sessions:*'],
    })
    ;({ agentId, requests } = await app.scripted([]))
  })
  after(async () => {
    await app.close()
  })

  const open = (options: Partial<ConstructorParameters<typeof ThreadClient>[0]> = {}) =>
    new ThreadClient({ url: app.url, token: app.key.token, agentId, ...options })
  const run = (content: unknown, fields: object = {}) => ({
    threadId: randomUUID(),
    runId: randomUUID(),
    messages: [{ id: randomUUID(), role: 'user', content }],
    ...fields,
  })
  const seen = async () => (await requests()).at(-1).body.messages.findLast(({ role }: any) => role === 'user').content
  const files = async () => (await app.key.get('/files?path_prefix=/ag-ui&limit=100')).body
  const stored = async (id: string) => (await app.key.get(`/sessions/${id}/messages`)).body.data
  const sessionOf = async (client: ThreadClient) => {
    const again = { threadId: client.agent.threadId, runId: client.runs[0][0].runId, messages: client.agent.messages }
    return (await postRun(app, app.key, agentId, again)).headers.get('x-svc-session-id') as string
  }

  it('are not fetched for callers that may not upload files', async () => {
    const resource = [`srn:${app.projectId}:*:*`]
    const document = { statement: [{ effect: 'Allow', action: CHAT_ACTIONS, resource }] }
    const { id } = (await app.admin.post('/policies', { document })).body
    const { secret } = (await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [id] })).body
    const source = { type: 'url', value: `${target.url}/cat.png` }
    const refused = await postRun(app, { token: secret }, agentId, run([image(source)]))
    assert.deepEqual([refused.status, refused.body?.error?.code], [403, 'FORBIDDEN'])
    assert.equal(target.requests.length, 0)
  })

  it('reach the model, and are stored once as files of the message', async () => {
    const client = open()
    const paper = { metadata: { filename: '../paper".pdf' } }
    await client.say([
      text('A picture'),
      image(inline(PNG, 'image/png')),
      document(inline(pdf(['x']), 'application/pdf'), paper),
    ])
    const types = (await seen()).map(({ type }: any) => type)
    assert.deepEqual(types.slice(0, 2), ['text', 'image_url'])
    const before = (await files()).total
    await client.say('And now?')
    assert.equal((await files()).total, before)
    const [message] = await stored(await sessionOf(client))
    assert.deepEqual(
      message.parts.map(({ type }: any) => type),
      ['text', 'image', 'file'],
    )
    assert.equal(message.content, 'A picture\n\n[image: image]\n\n[file: ".._paper\\".pdf"]')
  })

  it('are given to another client of the thread as file sources, which it sends back', async () => {
    const first = open()
    await first.say([text('A picture'), image(inline(PNG, 'image/png'))])
    const other = open({ threadId: await sessionOf(first) })
    await other.say('Again?')
    const [{ content }] = other.agent.messages as any[]
    assert.deepEqual(
      content.map(({ type, source }: any) => [type, source?.type]),
      [
        ['text', undefined],
        ['image', 'file'],
      ],
    )
    await other.say([image({ type: 'file', value: content[1].source.value })])
    assert.equal((await seen())[0].type, 'image_url')
  })

  it('are fetched from URLs for a key and never for an end user', async () => {
    const source = { type: 'url', value: `${target.url}/cat.png` }
    const sent = await postRun(app, app.key, agentId, run([image(source)]))
    assert.equal(sent.events.at(-1)?.type, 'RUN_FINISHED')
    assert.equal((await seen())[0].type, 'image_url')
    assert.equal(target.requests.length, 1)
    const ann = await endUser(app, { agent_ids: [agentId], scopes: ['chat', 'files'] })
    for (const [caller, part] of [
      [ann, image(source)],
      [app.key, document(source)],
      [app.key, image({ type: 'url', value: 'http://10.0.0.1/cat.png' })],
    ] as const) {
      const { events } = await postRun(app, caller, agentId, run([part]))
      assert.deepEqual([types(events), events.at(-1)?.code], [['RUN_STARTED', 'RUN_ERROR'], 'MEDIA_NOT_ACCEPTED'])
    }
    assert.equal(target.requests.length, 1)
  })

  it('are notes if they are audio, video or files of another provider', async () => {
    const parts = [
      text('Listen'),
      { type: 'audio', source: inline(PNG, 'audio/wav') },
      { type: 'video', source: { type: 'url', value: 'https://example.com/a.mp4' } },
      image({ type: 'file', value: 'file-abc', provider: 'openai' }),
    ]
    await open().say(parts)
    assert.equal(await seen(), 'Listen\n\n[audio]\n\n[video]\n\n[image]')
  })

  it('of an end user need the scope for files, and are its own', async () => {
    const picture = [image(inline(PNG, 'image/png'))]
    const ann = await endUser(app, { agent_ids: [agentId], scopes: ['chat', 'files'] })
    const sent = await postRun(app, ann, agentId, run(picture))
    assert.equal(sent.events.at(-1)?.type, 'RUN_FINISHED', JSON.stringify(sent))
    const [{ parts }] = await stored(sent.headers.get('x-svc-session-id') as string)
    const { path, actor_id } = (await app.key.get(`/files/${parts[0].file_id}`)).body
    assert.deepEqual([path, actor_id], [`/.actors/${ann.actorId}/${parts[0].file_id}`, ann.actorId])
    const bob = await endUser(app, { agent_ids: [agentId] })
    const refused = await postRun(app, bob, agentId, run(picture))
    assert.deepEqual([refused.status, refused.body.error.code], [403, 'FORBIDDEN'])
    const foreign = await postRun(app, bob, agentId, run([image({ type: 'file', value: parts[0].file_id })]))
    assert.equal(foreign.events.at(-1)?.code, 'FILE_NOT_FOUND')
    const limited = await endUser(app, {
      agent_ids: [agentId],
      scopes: ['chat', 'files'],
      limits: { upload_bytes_per_day: 10 },
    })
    assert.equal((await postRun(app, limited, agentId, run(picture))).status, 429)
  })

  it('need the rights to upload and read files', async () => {
    const statement = [{ effect: 'Allow', action: CHAT_ACTIONS, resource: ['*'] }]
    const policy = await app.admin.post('/policies', { document: { statement } })
    const key = await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policy.body.id] })
    const caller = app.as(key.body.secret)
    const refused = await postRun(app, caller, agentId, run([image(inline(PNG, 'image/png'))]))
    assert.deepEqual([refused.status, refused.body?.error.code], [403, 'FORBIDDEN'])
  })

  it('are refused with their message if their content has another type', async () => {
    const before = (await files()).total
    const body = run([text('A picture'), image(inline(Buffer.from('<html><script>'), 'image/png'))])
    const refused = await postRun(app, app.key, agentId, body)
    assert.deepEqual(
      [types(refused.events), refused.events[1].code],
      [['RUN_STARTED', 'RUN_ERROR'], 'MEDIA_NOT_ACCEPTED'],
    )
    assert.deepEqual(await stored(refused.headers.get('x-svc-session-id') as string), [])
    assert.equal((await files()).total, before)
    for (const source of [
      { type: 'data', value: 'no base64!', mimeType: 'image/png' },
      { type: 'data', value: 'AAAA' },
    ]) {
      const { events } = await postRun(app, app.key, agentId, run([image(source)]))
      assert.equal(events.at(-1)?.code, 'VALIDATION_FAILED')
    }
    assert.equal((await postRun(app, app.key, agentId, run([image({ type: 'data' })]))).status, 400)
  })

  it('are refused before one is stored if a message has too many', async () => {
    const before = (await files()).total
    const { events } = await postRun(
      app,
      app.key,
      agentId,
      run(Array.from({ length: 17 }, () => image(inline(PNG, 'image/png')))),
    )
    assert.equal(events.at(-1)?.code, 'VALIDATION_FAILED')
    assert.equal((await files()).total, before)
  })

  it('are stored once when the same run is posted twice', async () => {
    const body = run([text(said({ text: 'once' })), image(inline(PNG, 'image/png'))])
    const post = () => postRun(app, app.key, agentId, body)
    const [first, second] = await Promise.all([post(), post()])
    for (const { events } of [first, second]) assert.equal(events.at(-1)?.type, 'RUN_FINISHED')
    const messages = await stored(first.headers.get('x-svc-session-id') as string)
    assert.deepEqual(
      messages.map(({ role }: any) => role),
      ['user', 'assistant'],
    )
  })
})
