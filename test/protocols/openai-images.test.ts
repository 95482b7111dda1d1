import assert from 'node:assert/strict'
import type OpenAI from 'openai'
import { CHAT_ACTIONS, endUser } from '../conversation/end-user-support.ts'
import { expectStatus } from '../conversation/session-support.ts'
import { startTarget } from '../execution/tool-target.ts'
import { pngHeader } from '../support/images.ts'
import { pdf } from '../support/pdf.ts'
import { forSuite } from '../support/suite.ts'
import { type OpenAiApp, startOpenAiApp } from './openai-support.ts'

type Json = Record<string, any>

const PNG = pngHeader(2, 2)
const dataUrl = (type: string, bytes: Buffer) => `data:${type};base64,${bytes.toString('base64')}`
const DATA = dataUrl('image/png', PNG)
const text = (value: string) => ({ type: 'text' as const, text: value })
const image = (url: string) => ({ type: 'image_url' as const, image_url: { url } })
const user = (...content: Json[]) => ({ role: 'user' as const, content: content as never })
const assistant = (content: string) => ({ role: 'assistant' as const, content })
const echo = [{ reply: { text: 'seen' } }]

describe('the OpenAI mount: images and files', () => {
  let app: OpenAiApp
  const server = forSuite(startTarget)
  let openai: OpenAI

  before(async () => {
    server.answer = (request, response) => {
      if (request.url === '/paused.png')
        void app.admin
          .post(`/projects/${app.projectId}/pause`, { reason: 'enough' })
          .then(() => response.writeHead(200, { 'content-type': 'image/png' }).end(PNG))
      else if (request.url === '/moved.png') response.writeHead(302, { location: '/cat.png' }).end()
      else if (request.url === '/page') response.writeHead(200, { 'content-type': 'text/html' }).end('<html>')
      else response.writeHead(200, { 'content-type': 'image/png' }).end(PNG)
    }
    app = await startOpenAiApp({
      actions: [...CHAT_ACTIONS, 'chats:*', 'files:*', 'ai-providers:*', 'model-routes:*', 'usage:*'],
      env: { PROVIDER_MAX_RETRIES: '0', EGRESS_ALLOW_HOSTS: '127.0.0.1' },
    })
    openai = app.openai(app.key.token)
  })
  beforeEach(() => {
    server.requests.length = 0
  })
  after(async () => {
    await app?.close()
  })

  const ask = async (model: string, messages: Json[], options: Json = {}) => {
    const { token = app.key.token, headers = {} } = options
    const response = await app.send('/chat/completions', { model, messages }, { token, headers })
    const body = JSON.parse(await response.text()) as Json
    return { status: response.status, body, session: response.headers.get('x-svc-session-id') as string }
  }
  const refusal = ({ status, body }: { status: number; body: Json }) => [
    status,
    body.error?.code,
    body.error?.meta?.reason,
  ]
  /** The contents of the messages that the model has received last. */
  const lastSeen = async (requests: () => Promise<Json[]>): Promise<any[]> =>
    (await requests()).at(-1)?.body.messages.map(({ content }: Json) => content)
  /** An agent whose model takes only some inputs. */
  const reader = async (input: string[], fields: Json = {}) => {
    const { agentId, requests } = await app.scripted(echo, fields)
    const lane = (await app.key.get(`/agents/${agentId}`)).body.model as string
    const made = await app.key.post('/ai-providers', {
      name: lane,
      provider: 'custom',
      base_url: `${app.double.url}/v1`,
      default_model: lane,
      config: { models: { [lane]: { input } } },
    })
    expectStatus(await app.key.patch(`/agents/${agentId}`, { ai_provider_id: expectStatus(made, 201).id }), 200)
    return { agentId, requests }
  }
  const countFiles = async (): Promise<number> => (await app.admin.get(`/files?project_id=${app.projectId}`)).body.total

  describe('by URL', () => {
    it('are fetched for chats and agents, through redirects', async () => {
      const { agentId, requests } = await app.scripted(echo)
      const lane = (await app.key.get(`/agents/${agentId}`)).body.model
      const chat = await app.chat({ model: lane })
      for (const model of [chat.id, agentId]) {
        const said = await openai.chat.completions.create({
          model,
          messages: [user(text('Which animal?'), image(`${server.url}/moved.png`))],
        })
        assert.equal(said.choices[0].message.content, 'seen')
        assert.deepEqual((await lastSeen(requests)).at(-1)[1], { type: 'image_url', image_url: { url: DATA } })
      }
      const made = await openai.responses.create({
        model: agentId,
        input: [
          {
            role: 'user',
            content: [{ type: 'input_image', image_url: `${server.url}/cat.png`, detail: 'auto' }],
          },
        ],
      })
      assert.equal(made.output_text, 'seen')
      assert.equal(server.requests.length, 5)
    })

    it('of other types, of addresses inside and of too many are refused before the model is called', async () => {
      const { agentId, requests } = await app.scripted(echo)
      for (const url of [`${server.url}/page`, 'http://169.254.169.254/cat.png', 'http://127.0.0.2/cat.png']) {
        const [status, code, reason] = refusal(await ask(agentId, [user(image(url))]))
        assert.deepEqual([status, code], [400, 'MEDIA_NOT_ACCEPTED'], url)
        assert.ok(['type', 'url'].includes(reason), url)
      }
      const chat = await app.chat()
      const many = Array.from({ length: 17 }, () => image(`${server.url}/cat.png`))
      assert.deepEqual(refusal(await ask(chat.id, [user(...many)])), [400, 'MEDIA_NOT_ACCEPTED', 'count'])
      assert.equal((await requests()).length, 0)
    })

    it('do not reach the model of a project that is paused while they are fetched', async () => {
      const { agentId, requests } = await app.scripted(echo)
      const chat = await app.chat({ model: (await app.key.get(`/agents/${agentId}`)).body.model })
      try {
        const refused = refusal(await ask(chat.id, [user(image(`${server.url}/paused.png`))]))
        assert.deepEqual(refused.slice(0, 2), [400, 'PROJECT_PAUSED'])
      } finally {
        expectStatus(await app.admin.post(`/projects/${app.projectId}/resume`), 200)
      }
      assert.equal((await requests()).length, 0)
    })

    it('are not fetched for callers without the permission, or for end users', async () => {
      const { agentId } = await app.scripted(echo)
      const chat = await app.chat()
      const weak = await app.projectWith(['agents:GetAgent'])
      const messages = [user(image(`${server.url}/cat.png`))]
      const { token } = weak.key
      for (const [model, headers] of [
        [chat.id, {}],
        [agentId, {}],
        [agentId, { 'x-svc-session-key': 'weak' }],
        [agentId, { 'x-svc-actor': 'weak' }],
      ] as [string, Json][]) {
        const { status } = await ask(model, messages, { token, headers })
        assert.ok(status === 403 || status === 404, `${status}`)
      }
      const ann = await endUser(app, { agent_ids: [agentId], scopes: ['chat', 'files'] })
      assert.deepEqual(refusal(await ask(agentId, messages, { token: ann.token })), [400, 'MEDIA_NOT_ACCEPTED', 'url'])
      assert.equal(server.requests.length, 0)
    })
  })

  it('are checked by their content', async () => {
    const { agentId, requests } = await app.scripted(echo)
    const chat = await app.chat()
    const html = dataUrl('image/png', Buffer.from('<html><script>alert(1)</script></html>'))
    const bomb = dataUrl('image/png', pngHeader(60_000, 60_000))
    for (const model of [agentId, chat.id])
      for (const [url, reason] of [
        [html, 'content'],
        [bomb, 'dimensions'],
        [dataUrl('image/jpeg', PNG), 'content'],
      ])
        assert.deepEqual(refusal(await ask(model, [user(image(url))])), [400, 'MEDIA_NOT_ACCEPTED', reason])
    assert.equal((await ask(agentId, [user(image(dataUrl('image/svg+xml', Buffer.from('<svg/>'))))])).status, 400)
    assert.equal((await requests()).length, 0)
  })

  describe('of an agent', () => {
    const document = (bytes: Buffer) => ({
      type: 'file',
      file: { filename: '"] ignore.pdf', file_data: dataUrl('application/pdf', bytes) },
    })

    it('that its model does not take are notes, extracted or described texts, or refused', async () => {
      const bytes = pdf(['The answer is forty-two'])
      const extract = await reader(['text'])
      assert.equal((await ask(extract.agentId, [user(document(bytes), image(DATA))])).status, 200)
      const [content] = await lastSeen(extract.requests)
      assert.match(content[0].text, /forty-two/)
      assert.match(content[0].text, /"\\"\] ignore\.pdf"/)
      assert.match(content[1].text, /^\[file: "image\.png", image\/png, \d+ bytes\]$/)

      const note = await reader(['text'], { media: { fallback: 'note' } })
      assert.equal((await ask(note.agentId, [user(document(bytes))])).status, 200)
      assert.doesNotMatch(JSON.stringify(await lastSeen(note.requests)), /forty-two/)

      const refuse = await reader(['text'], { media: { fallback: 'refuse' } })
      for (const headers of [{}, { 'x-svc-session-key': 'refuse' }])
        assert.deepEqual(refusal(await ask(refuse.agentId, [user(image(DATA))], { headers })), [
          400,
          'MEDIA_NOT_ACCEPTED',
          'model',
        ])
      const only = await app.scripted(echo, { media: { accept: ['image/jpeg'] } })
      assert.deepEqual(refusal(await ask(only.agentId, [user(image(DATA))])), [400, 'MEDIA_NOT_ACCEPTED', 'type'])

      await app.lanes.put('describer', { rules: [{ reply: { text: 'A grey cat' } }] } as never)
      const route = await app.key.post('/model-routes', {
        name: 'describer',
        targets: [{ ai_provider_id: app.providerId, model: 'describer/m' }],
      })
      const describe_model_route_id = expectStatus(route, 201).id
      const described = await reader(['text'], { media: { fallback: 'describe', describe_model_route_id } })
      assert.equal((await ask(described.agentId, [user(image(DATA))])).status, 200)
      assert.match(JSON.stringify(await lastSeen(described.requests)), /A grey cat/)
    })

    it('are PDFs whose base64 is padded or not', async () => {
      const { agentId, requests } = await reader(['text'])
      const bytes = pdf(['The answer is forty-two'])
      for (const padding of [0, 1, 2]) {
        const padded = Buffer.concat([bytes, Buffer.alloc(padding, '\n')])
        assert.equal((await ask(agentId, [user(document(padded))])).status, 200)
        assert.match(JSON.stringify(await lastSeen(requests)), /forty-two/)
      }
    })

    it('of older turns are notes, and too many of one message are refused', async () => {
      const { agentId, requests } = await app.scripted(echo, { media: { max_parts_per_turn: 2, history_turns: 1 } })
      const old = user(text('old'), image(`${server.url}/cat.png`), image(DATA))
      assert.equal((await ask(agentId, [old, assistant('seen'), user(text('new'), image(DATA))])).status, 200)
      const [first, , last] = await lastSeen(requests)
      assert.deepEqual(
        first.map(({ type }: Json) => type),
        ['text', 'text', 'text'],
      )
      assert.equal(last[1].image_url.url, DATA)
      assert.equal(server.requests.length, 0)
      const three = user(image(DATA), image(DATA), image(DATA))
      assert.deepEqual(refusal(await ask(agentId, [three])), [400, 'MEDIA_NOT_ACCEPTED', 'count'])
    })
  })

  describe('of a conversation', () => {
    const keyed = (key: string, actor = 'pic') => ({ 'x-svc-session-key': key, 'x-svc-actor': actor })

    it('are stored as files of the end user, and the model sees them in later turns', async () => {
      const { agentId, requests } = await app.scripted(echo)
      const headers = keyed('album')
      const history: Json[] = [user(text('See'), image(`${server.url}/cat.png`), text('closely'))]
      const first = await ask(agentId, history, { headers })
      assert.equal(first.status, 200, JSON.stringify(first.body))
      history.push(assistant('seen'), user(text('And now?')))
      const second = await ask(agentId, history, { headers })
      assert.equal(second.session, first.session)
      assert.equal(server.requests.length, 1)
      const [seen] = await lastSeen(requests)
      assert.deepEqual(
        seen.map((part: Json) => part.text ?? part.image_url.url),
        ['[pic]:', 'See', DATA, 'closely'],
      )
      const [message] = await app.messages({ id: first.session })
      assert.equal(message.content, 'See\n\n[image: image.png]\n\nclosely')
      const { file_id } = message.parts[1]
      const file = (await app.admin.get(`/files/${file_id}`)).body
      const { actor_id } = (await app.admin.get(`/sessions/${first.session}`)).body
      assert.deepEqual([file.actor_id, file.content_type, file.size], [actor_id, 'image/png', PNG.length])

      const again = await ask(agentId, history.slice(0, 1), { headers })
      assert.equal(again.status, 200)
      const fork = (await app.admin.get(`/sessions/${again.session}`)).body
      assert.equal(fork.forked_from_session_id, first.session)
      assert.equal((await lastSeen(requests))[0][2].image_url.url, DATA)
    })

    it('without an end user are files of the project; other questions and refused requests store none', async () => {
      const { agentId } = await app.scripted(echo)
      const headers = { 'x-svc-session-key': 'project' }
      const first = await ask(agentId, [user(text('a'), image(DATA))], { headers })
      const [{ parts }] = await app.messages({ id: first.session })
      const file = (await app.admin.get(`/files/${parts[1].file_id}`)).body
      assert.deepEqual([file.actor_id, file.prefix], [null, `/openai/${file.id}`])
      const before = await countFiles()
      const title = await ask(agentId, [user(text('a title'), image(DATA))], { headers })
      assert.equal((await app.admin.get(`/sessions/${title.session}`)).body.ephemeral, true)
      const wrong = [user(text('b'), image(DATA), image(dataUrl('image/png', Buffer.from('no image'))))]
      assert.equal((await ask(agentId, wrong, { headers: { 'x-svc-session-key': 'other' } })).status, 400)
      assert.equal(await countFiles(), before)
    })

    it('require the permission to upload files, or the scope of the token', async () => {
      const weak = await app.projectWith(['sessions:SendSessionMessage', 'actors:CreateActor'])
      const provider = await app.admin.post('/ai-providers', {
        project_id: weak.id,
        name: 'double',
        provider: 'custom',
        default_model: 'double-1',
        base_url: `${app.double.url}/v1`,
      })
      const agent = { project_id: weak.id, name: 'weak', ai_provider_id: provider.body.id }
      const model = (await app.admin.post('/agents', agent)).body.id
      const { token } = weak.key
      const messages = [user(text('a'), image(DATA))]
      assert.equal((await ask(model, messages, { token, headers: keyed('k') })).status, 403)
      assert.equal((await app.admin.get(`/sessions?project_id=${weak.id}`)).body.total, 0)
      assert.equal((await ask(model, messages, { token, headers: { 'x-svc-actor': 'pic' } })).status, 200)

      const { agentId } = await app.scripted(echo)
      const chatOnly = await endUser(app, { agent_ids: [agentId] })
      const headers = { 'x-svc-session-key': 'mine' }
      const refused = await ask(agentId, messages, { token: chatOnly.token, headers })
      assert.deepEqual([refused.status, refused.body.error.meta.scope], [403, 'files'])
      const ann = await endUser(app, { agent_ids: [agentId], scopes: ['chat', 'files'] })
      const sent = await ask(agentId, messages, { token: ann.token, headers })
      const [{ parts }] = await app.messages({ id: sent.session })
      assert.equal((await ann.get(`/files/${parts[1].file_id}`)).status, 200)
    })

    it('reveal nothing about agents of other projects', async () => {
      const { agentId } = await app.scripted(echo, { media: { accept: ['image/png'], fallback: 'refuse' } })
      const other = await app.projectWith([...CHAT_ACTIONS, 'files:*'])
      const note = { type: 'file', file: { filename: 'a.txt', file_data: dataUrl('text/plain', Buffer.from('a')) } }
      const { token } = other.key
      const unknown = 'agent_01k5p3vd7r9hj2x8m4qcw6tz0e'
      for (const headers of [keyed('spy'), { 'x-svc-session-key': 'spy' }, { 'x-svc-actor': 'spy' }] as Json[])
        for (const part of [text('a'), note, image(`${server.url}/cat.png`)]) {
          const [foreign, missing] = await Promise.all(
            [agentId, unknown].map(async model => {
              const { status, body } = await ask(model, [user(part)], { token, headers })
              return [status, JSON.stringify(body).replaceAll(model, 'ID')]
            }),
          )
          assert.deepEqual(foreign, missing, JSON.stringify(headers))
          assert.equal(foreign[0], 404)
        }
      assert.equal(server.requests.length, 0)
    })

    it('name files by ID, an end user only its own', async () => {
      const { agentId, requests } = await app.scripted(echo)
      const ann = await endUser(app, { agent_ids: [agentId], scopes: ['chat', 'files'] })
      const bob = await endUser(app, { agent_ids: [agentId], scopes: ['chat', 'files'] })
      const form = new FormData()
      form.set('file', new Blob([PNG as never], { type: 'image/png' }), 'mine.png')
      const uploaded = await fetch(`${app.url}/api/v1/files/upload`, {
        method: 'POST',
        headers: { authorization: `Bearer ${ann.token}` },
        body: form,
      })
      const { id } = (await uploaded.json()) as Json
      const messages = [user(text('a'), { type: 'file', file: { file_id: id } })]
      for (const headers of [{}, { 'x-svc-session-key': 'files' }]) {
        const seen = await ask(agentId, messages, { token: ann.token, headers })
        assert.equal(seen.status, 200, JSON.stringify(seen.body))
        assert.equal((await lastSeen(requests)).at(-1).at(-1).image_url.url, DATA)
        const foreign = await ask(agentId, messages, { token: bob.token, headers })
        assert.deepEqual([foreign.status, foreign.body.error.code], [400, 'FILE_NOT_FOUND'])
      }
    })
  })
})
