import assert from 'node:assert/strict'
import { ingested, upload } from '../content/ingestion-support.ts'
import { client } from '../local/double/client.ts'
import { eventually, type Reply, type TestProject } from '../support/app.ts'
import { runWorker } from '../support/hosts.ts'
import { startProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'
import { accepted, shared, statuses } from './share-support.ts'
import { openStream, readStream } from './streams.ts'
import { refused } from './tool-target.ts'

const RUNNING = [
  'agents:*',
  'shares:*',
  'generations:*',
  'traces:*',
  'conversations:*',
  'documents:*',
  'files:*',
  'ingestion-rules:*',
  'events:ListEvents',
]
const FAST = { GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '1', PROVIDER_MAX_RETRIES: '0' }

const nameOf = (app: AgentApp, id: string) => `srn:${app.projectId}:agent:${id}`

/** An agent of the app's project with a share that the grantee accepted. */
async function usable(
  app: AgentApp,
  grantee: TestProject,
  fields: Record<string, unknown> = {},
  terms: Record<string, unknown> = {},
) {
  const id = await app.agent(fields)
  const share = await shared(app.key, nameOf(app, id), { grantee: grantee.id, ...terms })
  const acceptance = await accepted(grantee.key, share.id)
  return { id, share, acceptance }
}

const generate = (grantee: TestProject, id: string, body: object = { prompt: 'hello' }, query = '?wait=true') =>
  grantee.key.post(`/agents/${id}/generate${query}`, body)

describe('shares of agents', () => {
  const app = forSuite(() =>
    startAgentApp({
      together: true,
      workers: ['generation', 'ingestion'],
      actions: ['agents:*', 'shares:*', 'generations:*', 'traces:*', 'events:ListEvents'],
    }),
  )
  const double = forSuite(() => client(app.double))
  const grantee = forSuite(() => app.projectWith(RUNNING))
  const stranger = forSuite(() => app.projectWith(RUNNING))

  const read = async (id: string) => (await grantee.key.get(`/generations/${id}`)).body
  const ended = (id: string) =>
    eventually(async () => {
      const row = await read(id)
      return ['completed', 'failed'].includes(row.status) && row
    })

  it('show its id and name, and let no other project write', async () => {
    const { id } = await usable(app, grantee, { name: 'helper', instructions: 'hidden' })
    const { body, headers } = await grantee.key.get(`/agents/${id}`)
    assert.deepEqual([body, headers.get('etag')], [{ id, name: 'helper' }, null])
    refused(await grantee.key.patch(`/agents/${id}`, { name: 'mine' }), 403, 'API_KEY_PROJECT_SCOPE')
    refused(await grantee.key.delete(`/agents/${id}`), 403, 'API_KEY_PROJECT_SCOPE')
    refused(await grantee.key.get(`/agents/${id}/versions`), 403, 'API_KEY_PROJECT_SCOPE')
    refused(await stranger.key.get(`/agents/${id}`), 404, 'RESOURCE_NOT_FOUND')
  })

  it('run it as its project made it, and store the results in the calling project', async () => {
    await double.put('own', { rules: [] })
    const { id } = await usable(app, grantee, { model: 'own/m', instructions: 'Be brief' })
    const { status, body } = await generate(grantee, id)
    assert.equal(status, 200, JSON.stringify(body))
    assert.equal(body.output.content, 'echo: hello')
    const [asked] = await double.requests('own')
    assert.equal(asked.body.messages[0].content, 'Be brief')
    const row = await read(body.id)
    assert.deepEqual([row.project_id, row.agent_id, row.publisher_project_id], [grantee.id, id, app.projectId])
    assert.equal((await grantee.key.get(`/traces/${body.trace_id}`)).body.project_id, grantee.id)
    assert.equal((await app.key.get(`/generations?agent_id=${id}`)).body.total, 0)
    refused(await app.key.get(`/generations/${body.id}`), 404, 'GENERATION_NOT_FOUND')
    const events = (await grantee.key.get(`/events?resource_id=${body.id}`)).body.data
    assert.equal(events[0].data.publisher_project_id, app.projectId)
    assert.equal((await app.key.get(`/events?resource_id=${body.id}`)).body.total, 0)
    const own = await app.key.post(`/agents/${id}/generate?wait=true`, { prompt: 'own' })
    assert.equal((await app.key.get(`/generations/${own.body.id}`)).body.publisher_project_id, null)
  })

  it('answer with an event stream too', async () => {
    const { id } = await usable(app, grantee)
    const asker = { url: app.url, key: grantee.key }
    const stream = await openStream(asker, `/agents/${id}/generate`, { prompt: 'hello', stream: true })
    const messages = await readStream(stream)
    assert.equal(messages.at(-1)?.event, 'completed')
  })

  it('do not run before they are accepted, nor while they are suspended', async () => {
    const id = await app.agent()
    const share = await shared(app.key, nameOf(app, id), { grantee: grantee.id })
    refused(await generate(grantee, id), 403, 'API_KEY_PROJECT_SCOPE')
    refused(await generate(stranger, id), 404, 'RESOURCE_NOT_FOUND')
    await accepted(grantee.key, share.id)
    await app.key.post(`/shares/${share.id}/suspend`)
    refused(await generate(grantee, id), 403, 'API_KEY_PROJECT_SCOPE')
    await app.key.post(`/shares/${share.id}/resume`)
    assert.equal((await generate(grantee, id)).status, 200)
    assert.equal((await grantee.key.get(`/generations?agent_id=${id}`)).body.total, 1)
  })

  it('follow the pause and the content mode of the calling project', async () => {
    const other = await app.projectWith(RUNNING)
    const kept = await usable(app, other, { trace_content_mode: 'none' })
    const first = await generate(other, kept.id)
    const stored = (await other.key.get(`/generations/${first.body.id}`)).body
    assert.deepEqual([stored.content_redacted_at, stored.output.content], [null, 'echo: hello'])
    await app.admin.patch(`/projects/${other.id}`, { trace_content_mode: 'none' })
    const second = await generate(other, kept.id)
    assert.equal((await other.key.get(`/generations/${second.body.id}`)).body.output, null)
    await app.admin.post(`/projects/${other.id}/pause`)
    refused(await generate(other, kept.id), 409, 'PROJECT_PAUSED')
    await app.admin.post(`/projects/${other.id}/resume`)
    await app.admin.post(`/projects/${app.projectId}/pause`)
    try {
      assert.equal((await generate(other, kept.id)).status, 200)
    } finally {
      await app.admin.post(`/projects/${app.projectId}/resume`)
    }
  })

  it('allow as many turns as their cap, under concurrent callers', async () => {
    const cap = { calls: 5, window: 'calendar_month' }
    const { id, share } = await usable(app, grantee, {}, { cap })
    const replies = await Promise.all(Array.from({ length: 20 }, () => generate(grantee, id, { prompt: 'x' }, '')))
    assert.deepEqual(statuses(replies), { 202: 5, 429: 15 })
    const spent = replies.find(({ status }) => status === 429) as Reply
    assert.equal(refused(spent, 429, 'SHARE_CAP_EXCEEDED').meta.share_id, share.id)
    assert.ok(Number(spent.headers.get('retry-after')) >= 1)
    assert.equal((await grantee.key.get(`/generations?agent_id=${id}`)).body.total, 5)
    await eventually(async () => {
      const { data } = (await app.key.get(`/shares/${share.id}/usage`)).body
      return data[0]?.calls === 5 && data[0]?.refused === 15
    })
  })

  it('are not spent by turns that are refused otherwise', async () => {
    const { id } = await usable(app, grantee, {}, { cap: { calls: 1, window: 'calendar_month' } })
    refused(await generate(grantee, id, { messages: [] }), 400, 'VALIDATION_FAILED')
    const unpaid = { prompt: 'x', trace_id: 'trace_00000000000000000000000000' }
    refused(await generate(grantee, id, unpaid), 404, 'RESOURCE_NOT_FOUND')
    assert.equal((await generate(grantee, id)).status, 200)
    refused(await generate(grantee, id), 429, 'SHARE_CAP_EXCEEDED')
  })

  it('let a running turn complete when they are revoked', async () => {
    await double.put('ending', { rules: [{ reply: { text: 'done', gate: 'ending-gate' } }] })
    const { id, share } = await usable(app, grantee, { model: 'ending/m' })
    const { body } = await generate(grantee, id, { prompt: 'x' }, '')
    await eventually(async () => ((await double.gate('ending-gate'))?.waiting ?? 0) >= 1)
    await app.key.post(`/shares/${share.id}/revoke`)
    await double.read('POST', '/control/gates/ending-gate/open')
    assert.equal((await ended(body.generation_id)).status, 'completed')
    refused(await generate(grantee, id), 403, 'API_KEY_PROJECT_SCOPE')
  })

  it('let failed turns be run again, as separate turns', async () => {
    await double.put('failing', { rules: [{ when: { call: 1 }, reply: { error: { status: 400, message: 'no' } } }] })
    const cap = { calls: 2, window: 'calendar_month' }
    const { id, share } = await usable(app, grantee, { model: 'failing/m' }, { cap })
    const failed = await generate(grantee, id)
    assert.equal(failed.status, 502, JSON.stringify(failed.body))
    const retry = () => grantee.key.post(`/generations/${failed.body.error.meta.generation_id}/retry?wait=true`)
    const again = await retry()
    assert.equal(again.status, 200, JSON.stringify(again.body))
    assert.equal((await read(again.body.id)).publisher_project_id, app.projectId)
    refused(await retry(), 429, 'SHARE_CAP_EXCEEDED')
    await app.key.post(`/shares/${share.id}/revoke`)
    refused(await retry(), 400, 'AGENT_NOT_FOUND')
  })

  it('let it answer in conversations', async () => {
    const { id, share } = await usable(app, grantee)
    const conversation = (await grantee.key.post('/conversations', {})).body.id
    await grantee.key.post(`/conversations/${conversation}/messages`, { role: 'user', message: 'hi' })
    const ask = () => grantee.key.post(`/conversations/${conversation}/generate?wait=true`, { agent_id: id })
    const answer = await ask()
    assert.equal(answer.status, 200, JSON.stringify(answer.body))
    await app.key.post(`/shares/${share.id}/revoke`)
    refused(await ask(), 400, 'AGENT_NOT_FOUND')
  })

  it('let it convert files while it is shared', async () => {
    const { id, share } = await usable(app, grantee)
    const rule = { content_type_glob: 'image/png', agent_id: id }
    refused(await stranger.key.post('/ingestion-rules', rule), 400, 'AGENT_NOT_FOUND')
    const made = await grantee.key.post('/ingestion-rules', rule)
    assert.equal(made.status, 201, JSON.stringify(made.body))
    const convert = async () => ingested(grantee.key, await upload(grantee.key, 'bytes', { content_type: 'image/png' }))
    const document = await convert()
    assert.equal(document.status, 'ready', JSON.stringify(document.error))
    const [row] = (await grantee.key.get(`/generations?agent_id=${id}`)).body.data
    assert.deepEqual([row.source, row.publisher_project_id], ['ingestion', app.projectId])
    await app.key.post(`/shares/${share.id}/suspend`)
    const { error } = await convert()
    assert.deepEqual([error.code, error.meta.cause.code], ['CONVERTER_FAILED', 'AGENT_NOT_FOUND'])
  })

  it('prevent the deletion of an agent; its records elsewhere outlive it', async () => {
    const { id, share } = await usable(app, grantee)
    const there = await generate(grantee, id)
    const here = await app.key.post(`/agents/${id}/generate?wait=true`, { prompt: 'own' })
    const { meta } = refused(await app.key.delete(`/agents/${id}`), 409, 'AGENT_HAS_DEPENDENTS')
    assert.deepEqual(meta.counts, { generations: 1, traces: 1, accepted_shares: 1 })
    assert.deepEqual(meta.sample_ids.generations, [here.body.id])
    assert.equal((await app.key.delete(`/agents/${id}?force=true`)).status, 204)
    assert.equal((await app.key.get(`/generations/${here.body.id}`)).status, 404)
    const row = await read(there.body.id)
    assert.deepEqual([row.agent_id, row.status], [id, 'completed'])
    assert.equal((await grantee.key.get(`/generations/${there.body.id}/transcript`)).status, 200)
    assert.equal((await grantee.key.get(`/traces/${there.body.trace_id}`)).body.agent_id, id)
    assert.notEqual((await app.key.get(`/shares/${share.id}`)).body.revoked_at, null)
    refused(await generate(grantee, id), 404, 'RESOURCE_NOT_FOUND')
  })
})

describe('turns of shared agents', function () {
  this.timeout(60_000)
  let app: AgentApp
  let grantee: TestProject

  beforeEach(async () => {
    app = await startAgentApp({ together: true, workers: [], actions: ['agents:*', 'shares:*'] })
    grantee = await app.projectWith(RUNNING)
  })
  afterEach(() => app?.close())

  const failureOf = async (id: string) => {
    const last = await runWorker(app.databaseUrl, FAST, ['generation'])
    try {
      return await eventually(async () => {
        const { body } = await grantee.key.get(`/generations/${id}`)
        return ['completed', 'failed'].includes(body.status) && body.error
      })
    } finally {
      await last.stop()
    }
  }

  it('that have not started fail when the share ends', async () => {
    const { id, share } = await usable(app, grantee)
    const { body } = await generate(grantee, id, { prompt: 'x' }, '')
    await app.key.post(`/shares/${share.id}/revoke`)
    assert.equal((await failureOf(body.generation_id)).code, 'AGENT_NOT_FOUND')
  })

  it('that lost their worker fail when the agent is gone', async () => {
    const { id } = await usable(app, grantee)
    const { body } = await generate(grantee, id, { prompt: 'x' }, '')
    const doomed = { ...FAST, FAULT_POINTS: 'before_model=kill' }
    await (await startProcess('worker', app.databaseUrl, doomed, ['generation'])).exited
    assert.equal((await grantee.key.get(`/generations/${body.generation_id}`)).body.status, 'in_progress')
    assert.equal((await app.key.delete(`/agents/${id}?force=true`)).status, 204)
    assert.equal((await failureOf(body.generation_id)).code, 'AGENT_NOT_FOUND')
  })
})
