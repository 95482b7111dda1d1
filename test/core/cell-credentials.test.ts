import assert from 'node:assert/strict'
import { cellOfId } from '#core/base/ids.ts'
import { startDouble } from '#local/double/server.ts'
import { hook } from '../automation/triggers-support.ts'
import { download, formOf, sendForm } from '../content/file-support.ts'
import { wire } from '../mcp/support.ts'
import { type Client, client, eventually } from '../support/app.ts'
import { startCells } from '../support/cells.ts'
import { REDIRECT, refresh, register, startFront, tokensOf } from '../support/oauth.ts'
import { createdBy, postedBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

type Json = Record<string, any>

describe('credentials of a cell', function () {
  this.timeout(120_000)
  const double = forSuite(() => startDouble({}))
  const front = forSuite(startFront)
  const cells = forSuite(async () => {
    const env = { BASE_URL: front.url, TRUST_PROXY: '1', OAUTH_REFRESH_REUSE_GRACE_SECONDS: '0', STREAMS_MAX: '2' }
    const started = await startCells({ workers: true, env })
    front.targets.push(started.url)
    return started
  })
  const project = forSuite(() => cells.project('second'))
  const filename = () => `${Math.random().toString(36).slice(2)}.txt`
  const hello = { bytes: 'hello', name: 'hello.txt' }

  const agentOf = async (key: Client): Promise<Json> => {
    const provider = await postedBy(key, '/ai-providers', {
      name: 'double',
      provider: 'custom',
      default_model: 'double-1',
      base_url: `${double.url}/v1`,
    })
    return postedBy(key, '/agents', { name: 'Helper', ai_provider_id: provider.id })
  }
  let agent: Json
  before(async () => {
    agent = await agentOf(project.key)
  })

  it('upload tokens store files where they were issued', async () => {
    const { upload_token } = await createdBy(project.key, '/files/presigned-url', { filename: filename() })
    const reply = await sendForm(cells.url, null, `/files/upload/${upload_token}`, formOf([hello]))
    assert.equal(reply.status, 201, JSON.stringify(reply.body))
    assert.equal(cellOfId(reply.body.id), 1)
    assert.equal((await download(cells.url, project.key.token, reply.body.id)).bytes.toString(), 'hello')
  })

  it('a user uploads to the project in the fields before the file, or in the query', async () => {
    const inForm = formOf([['project_id', project.id], hello])
    const [form, json] = [
      await sendForm(cells.url, cells.admin.token, '/files/upload', inForm),
      await cells.admin.post('/files/upload/base64', {
        project_id: project.id,
        filename: filename(),
        content: Buffer.from('hello').toString('base64'),
      }),
    ]
    for (const reply of [form, json]) {
      assert.equal(reply.status, 201, JSON.stringify(reply.body))
      assert.equal(cellOfId(reply.body.id), 1)
      assert.equal((await download(cells.url, cells.admin.token, reply.body.id)).bytes.toString(), 'hello')
    }
  })

  it('tokens of end users act in their project, and in no other', async () => {
    const issued = await createdBy(project.key, '/actors/tokens', {
      actor: { external_id: 'ann', name: 'Ann' },
      agent_ids: [agent.id],
    })
    const ann = client(cells.url, issued.token)
    const session = await createdBy(ann, '/sessions', { agent_id: agent.id })
    assert.equal(cellOfId(session.id), 1)
    await createdBy(ann, `/sessions/${session.id}/messages`, { message: 'Hello' })
    const { body } = await ann.post(`/sessions/${session.id}/generate?wait=true`)
    assert.equal(body.status, 'completed', JSON.stringify(body))
    assert.equal((await ann.get('/sessions')).body.total, 1)
  })

  it('tickets open a stream once', async () => {
    const session = await createdBy(project.key, '/sessions', { agent_id: agent.id })
    const { ticket } = await createdBy(project.key, `/sessions/${session.id}/stream-tickets`)
    const open = async () => {
      const ending = new AbortController()
      const { status } = await fetch(`${cells.url}/api/v1/sessions/${session.id}/stream?ticket=${ticket}`, {
        signal: ending.signal,
      })
      ending.abort()
      return status
    }
    assert.deepEqual([await open(), await open()], [200, 401])
  })

  it('streams of all cells count for the limit of a process', async () => {
    const home = await cells.project('home')
    const sessions = [
      { key: home.key, id: (await createdBy(home.key, '/sessions', { agent_id: (await agentOf(home.key)).id })).id },
      { key: project.key, id: (await createdBy(project.key, '/sessions', { agent_id: agent.id })).id },
    ]
    const ending = new AbortController()
    const open = async ({ key, id }: (typeof sessions)[number]) => {
      const headers = { authorization: `Bearer ${key.token}` }
      const reply = await fetch(`${cells.url}/api/v1/sessions/${id}/stream`, { headers, signal: ending.signal })
      return reply.status
    }
    try {
      // The end of a stream of another test may come later.
      for (const each of sessions)
        await eventually(async () => (await open(each)) === 200, { within: 5000, what: 'a free stream' })
      assert.deepEqual([await open(sessions[0]), await open(sessions[1])], [503, 503])
    } finally {
      ending.abort()
    }
  })

  it('hooks of triggers and callbacks of runs arrive', async () => {
    const orchestration = await createdBy(project.key, '/orchestrations', {
      name: 'Waits',
      nodes: [{ id: 'hook', type: 'webhook' }],
      edges: [],
    })
    const trigger = await createdBy(project.key, '/triggers', {
      name: 'Hook',
      type: 'webhook',
      target_type: 'orchestration',
      target_id: orchestration.id,
    })
    const fired = await hook(cells.url, trigger as never, '{}')
    assert.equal(fired.status, 202, JSON.stringify([trigger, fired]))
    const run = await eventually(async () => {
      const { data } = (await project.key.get('/orchestration-runs?status=awaiting_input')).body
      return data[0]
    })
    const callback = new URL(run.required_actions[0].callback_url).pathname
    assert.equal((await fetch(`${cells.url}${callback}`, { method: 'POST', body: '{"n":7}' })).status, 202)
    const done = await eventually(async () => {
      const { body } = await project.key.get(`/orchestration-runs/${run.id}`)
      return body.status === 'succeeded' && body
    })
    assert.deepEqual(done.artifacts.hook, { n: 7 })
  })

  it('clients of MCP and of the OpenAI mount act in the cell of their key, or of the project that they name', async () => {
    for (const token of [project.key.token, cells.admin.token]) {
      const { body } = await wire(cells.url, token)('tools/call', {
        name: 'create-conversation',
        arguments: { name: 'By MCP', project_id: project.id },
      })
      const { id } = body.result.structuredContent
      assert.equal(cellOfId(id), 1, JSON.stringify(body))
    }
    const models = await fetch(`${cells.url}/openai/v1/models`, {
      headers: { authorization: `Bearer ${project.key.token}` },
    })
    assert.equal(models.status, 200)
    assert.ok(((await models.json()) as Json).data.some(({ id }: Json) => id.includes(agent.id)))
  })

  describe('grants of users for a project', () => {
    const granted = async () => {
      const { client_id } = await register(front.url)
      const consent = { project_id: project.id, selection: { kind: 'all' } }
      const tokens = await tokensOf(front.url, { client_id, redirect_uri: REDIRECT, user: cells.admin, consent })
      assert.equal((await cells.as(tokens.access_token).get('/actors')).status, 200)
      const [grant] = (await cells.admin.get(`/oauth/grants?client_id=${client_id}`)).body.data as Json[]
      assert.equal(grant.project_id, project.id)
      return { client_id, tokens, grant }
    }
    const isRefused = (token: string) =>
      eventually(async () => (await cells.as(token).get('/actors')).status === 401, { within: 5000, what: 'the end' })
    /** The newest entry of an action, which is at home: the chain of the project is in its cell. */
    const entryOf = async (action: string, id: string) => {
      const { data } = (await cells.admin.get(`/audit-log?action=${action}`)).body
      const entry = data.find(({ resource_public_id }: Json) => resource_public_id === id)
      assert.equal(entry.project_id, null)
      return entry
    }

    it('are given and revoked by the user', async () => {
      const { tokens, grant } = await granted()
      assert.equal((await cells.admin.delete(`/oauth/grants/${grant.id}`)).status, 204)
      await isRefused(tokens.access_token)
      assert.equal((await entryOf('oauth:RevokeGrant', grant.id)).principal_type, 'user')
    })

    it('end with a replayed refresh token', async () => {
      const { client_id, tokens, grant } = await granted()
      const next = await refresh(front.url, client_id, tokens.refresh_token)
      assert.equal(next.status, 200)
      assert.equal((await refresh(front.url, client_id, tokens.refresh_token)).body.error, 'invalid_grant')
      await isRefused(next.body.access_token)
      assert.equal((await entryOf('oauth:RevokeGrant', grant.id)).detail.kind, 'refresh_reuse')
    })
  })

  it('a repeated create with an Idempotency-Key makes one project', async () => {
    const headers = { 'idempotency-key': 'one-project' }
    const made = await Promise.all([1, 2, 3].map(() => cells.admin.post('/projects', { name: 'Once' }, headers)))
    const again = await cells.admin.post('/projects', { name: 'Once' }, headers)
    const ids = new Set([...made, again].filter(({ status }) => status === 201).map(({ body }) => body.id))
    assert.equal(ids.size, 1)
  })
})
