import assert from 'node:assert/strict'
import { upload } from '../content/ingestion-support.ts'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

type Target = { project: string; agent: string }
type Sent = { method?: string; path: string; headers?: Record<string, string>; body?: object }

const rpc = (method: string, params: object) => ({ jsonrpc: '2.0', id: 1, method, params })

/** A request to each mount, and to the API, that names the project or something in it. */
const requests: [string, (target: Target) => Sent][] = [
  ['the API', ({ project }) => ({ path: `/api/v1/agents?project_id=${project}` })],
  ['an item of the API', ({ agent }) => ({ path: `/api/v1/agents/${agent}` })],
  ['an upload token', ({ project }) => uploadToken(project)],
  ['the capabilities of AG-UI', ({ agent }) => ({ path: `/ag-ui/${agent}` })],
  ['a run of AG-UI', ({ agent }) => ({ path: `/ag-ui/${agent}`, body: agUiRun() })],
  ['a chat of the AI SDK', ({ agent }) => ({ path: `/ui/v1/chat/${agent}`, body: uiChat() })],
  ['the messages of a chat of the AI SDK', ({ agent }) => ({ path: `/ui/v1/chat/${agent}/x` })],
  ['JSON-RPC of A2A', ({ agent }) => a2a({ path: `/a2a/${agent}`, body: rpc('ListTasks', {}) })],
  ['HTTP+JSON of A2A', ({ agent }) => a2a({ path: `/a2a/${agent}/tasks?pageSize=1` })],
  ['an unknown method of A2A', ({ agent }) => a2a({ path: `/a2a/${agent}`, body: rpc('Nothing', {}) })],
  ['the card of A2A', ({ agent }) => ({ path: `/a2a/${agent}/.well-known/agent-card.json` })],
  ['models of OpenAI', ({ project }) => openai(project, { path: '/openai/v1/models' })],
  ['a model of OpenAI', ({ project, agent }) => openai(project, { path: `/openai/v1/models/${agent}` })],
  ['files of OpenAI', ({ project }) => openai(project, { path: '/openai/v1/files' })],
  ['a completion of OpenAI', ({ project, agent }) => openai(project, completion(agent))],
  [
    'a tool of MCP',
    ({ project }) => ({
      path: '/mcp',
      headers: { accept: 'application/json, text/event-stream' },
      body: rpc('tools/call', { name: 'list-agents', arguments: { project_id: project } }),
    }),
  ],
]

const uploadToken = (project_id: string): Sent => ({
  path: '/api/v1/files/presigned-url',
  body: { filename: 'x', project_id },
})
const a2a = (sent: Sent): Sent => ({ ...sent, headers: { 'A2A-Version': '1.0' } })
const openai = (project: string, sent: Sent): Sent => ({ ...sent, headers: { 'X-Svc-Project': project } })
const completion = (model: string): Sent => ({
  path: '/openai/v1/chat/completions',
  body: { model, messages: [{ role: 'user', content: 'hello' }], stream: false },
})
const uiChat = () => ({
  id: crypto.randomUUID(),
  messages: [{ id: crypto.randomUUID(), role: 'user', parts: [{ type: 'text', text: 'hello' }] }],
})
const agUiRun = () => ({
  threadId: crypto.randomUUID(),
  runId: crypto.randomUUID(),
  messages: [],
  tools: [],
  context: [],
  state: {},
  forwardedProps: {},
})

describe('a requests quota of a project', () => {
  const app = forSuite(() => startApp({ env: { A2A_MOUNT: 'true' } }))

  it('counts a request of an unscoped key where it works, not in the project that a header names', async () => {
    const quotaOf = async (name: string) => {
      const { id } = (await app.admin.post('/projects', { name })).body
      const quota = { project_id: id, scope: 'project', metric: 'requests', window: 'rolling_24h', limit: 100 }
      return { project: id, quota: (await app.admin.post('/quotas', quota)).body.id }
    }
    const [named, owner] = [await quotaOf('named by the header'), await quotaOf('owner of the file')]
    const file = await upload(app.admin, 'a', { project_id: owner.project })
    const { secret } = (await app.admin.post('/project-keys', {})).body
    for (const path of [`/files/${file}`, '/nothing', '/models/x'])
      await fetch(`${app.url}/openai/v1${path}`, {
        headers: { authorization: `Bearer ${secret}`, 'X-Svc-Project': named.project },
      })
    const used = async (quota: string) => (await app.admin.get(`/quotas/${quota}/usage`)).body.observed_value
    assert.deepEqual([await used(named.quota), await used(owner.quota)], [0, 1])
  })

  it('counts a request whose body is refused, and refuses it unread when the quota is used up', async () => {
    const { id: project } = (await app.admin.post('/projects', { name: 'bodies' })).body
    const { secret } = (await app.admin.post('/project-keys', { project_id: project })).body
    const limited = { project_id: project, scope: 'project', metric: 'requests', window: 'rolling_24h', limit: 3 }
    const { id: quota } = (await app.admin.post('/quotas', limited)).body
    const send = async (body: string, type = 'application/json') =>
      (
        await fetch(`${app.url}/api/v1/agents`, {
          method: 'POST',
          headers: { authorization: `Bearer ${secret}`, 'content-type': type },
          body,
        })
      ).status
    const large = `"${'x'.repeat(12 * 1024 * 1024)}"`
    assert.deepEqual([await send('{'), await send('[]'), await send(large)], [400, 400, 413])
    assert.deepEqual([await send('{'), await send('{}', 'application/json; charset=none')], [429, 429])
    assert.equal((await app.admin.get(`/quotas/${quota}/usage`)).body.observed_value, 5)
  })

  for (const [what, sentTo] of requests)
    for (const scoped of [true, false])
      it(`counts once and refuses ${what}, with ${scoped ? 'a' : 'an unscoped'} key`, async () => {
        const { id: project } = (await app.admin.post('/projects', { name: `${what} ${scoped}` })).body
        const vendor = { project_id: project, name: 'vendor', provider: 'openai', default_model: 'double-1' }
        const provider = await app.admin.post('/ai-providers', { ...vendor, config: { api_key: 'sk-none-at-all' } })
        const agent = { project_id: project, name: 'Desk', ai_provider_id: provider.body.id, a2a: { enabled: true } }
        const made = await app.admin.post('/agents', agent)
        assert.equal(made.status, 201, JSON.stringify([provider.body, made.body]))
        const key = (await app.admin.post('/project-keys', scoped ? { project_id: project } : {})).body.secret
        const quota = { project_id: project, scope: 'project', metric: 'requests', window: 'rolling_24h', limit: 1 }
        const { id } = (await app.admin.post('/quotas', quota)).body
        const { path, method, headers, body } = sentTo({ project, agent: made.body.id })
        const send = async () => {
          const response = await fetch(app.url + path, {
            method: method ?? (body ? 'POST' : 'GET'),
            headers: {
              authorization: `Bearer ${key}`,
              ...(body && { 'content-type': 'application/json' }),
              ...headers,
            },
            body: body && JSON.stringify(body),
            signal: AbortSignal.timeout(60_000),
          })
          return `${response.status} ${await response.text()}`
        }
        const used = async () => (await app.admin.get(`/quotas/${id}/usage`)).body.observed_value
        const first = await send()
        assert.doesNotMatch(first, /QUOTA_EXCEEDED|quota/i)
        assert.equal(await used(), 1, first)
        assert.match(await send(), /QUOTA_EXCEEDED|quota/i)
        // A refused request counts too.
        assert.equal(await used(), 2)
      })
})
