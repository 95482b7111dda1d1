import assert from 'node:assert/strict'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { chain, startRunApp } from './fixtures.ts'

const KEY = '11'.repeat(32)
const NEXT_KEY = '22'.repeat(32)

describe('callbacks of webhook nodes', function () {
  this.timeout(60_000)
  const app = forSuite(() => startRunApp({ env: { SECRETS_ENCRYPTION_KEY: KEY } }))

  const hook = { id: 'hook', type: 'webhook' }
  const waiting = async (more: object = {}) => {
    const run = await app.run(
      [
        { ...hook, ...more },
        { id: 'then', type: 'transform', expression: { var: 'nodes.hook.n' } },
      ],
      chain('hook', 'then'),
    )
    assert.equal(run.status, 'awaiting_input')
    return run
  }
  const urlOf = (run: any): string => run.required_actions[0].callback_url
  const pathOf = (url: string) => new URL(url).pathname
  const call = async (url: string, body: string | undefined, headers: Record<string, string> = {}) => {
    const response = await fetch(`${app.url}${pathOf(url)}`, { method: 'POST', body, headers })
    const text = await response.text()
    return { status: response.status, body: text ? JSON.parse(text) : null }
  }

  it('store the artifact of the node, once', async () => {
    const run = await waiting()
    const url = urlOf(run)
    assert.match(url, /\/api\/v1\/hooks\/orchestration-runs\/rcb_[\w-]{43}$/)
    assert.equal(run.required_action.callback_url, url)
    assert.equal(urlOf(await app.read(run.id)), url)
    const page = (await app.key.get(`/orchestration-runs?status=awaiting_input&view=summary`)).body.data
    assert.equal(urlOf(page.find(({ id }: any) => id === run.id)), url)
    assert.equal((await call(url, '{"n": 7}', { 'content-type': 'text/plain' })).status, 202)
    const done = await app.until(run.id)
    assert.deepEqual(done.artifacts.hook, { n: 7 })
    assert.deepEqual(done.output, { then: { result: 7 } })
    assert.equal((await call(url, '{"n": 8}')).status, 404)
  })

  it('accept one of two concurrent calls', async () => {
    const run = await waiting()
    const replies = await Promise.all([1, 2].map(n => call(urlOf(run), JSON.stringify({ n }))))
    assert.deepEqual(replies.map(({ status }) => status).sort(), [202, 404])
    const taken = replies.findIndex(({ status }) => status === 202) + 1
    assert.deepEqual((await app.until(run.id)).artifacts.hook, { n: taken })
  })

  it('belong to one wait each and end with it', async () => {
    const both = await app.run([hook, { id: 'other', type: 'webhook' }])
    const [one, other] = both.required_actions.map(({ callback_url }: any) => callback_url)
    assert.notEqual(one, other)
    assert.equal((await call(other, '{}')).status, 202)
    const half = await app.until(both.id, ({ required_actions }) => required_actions.length === 1)
    assert.equal(urlOf(half), one)
    assert.equal((await app.key.post(`/orchestration-runs/${both.id}/cancel`)).status, 200)
    assert.equal((await call(one, '{}')).status, 404)
    const answered = await waiting()
    await app.key.post(`/orchestration-runs/${answered.id}/human-input`, { node_id: 'hook', output: { n: 1 } })
    assert.equal((await call(urlOf(answered), '{}')).status, 404)
    const expired = await waiting({ expires_in: 1 })
    await app.until(expired.id)
    assert.equal((await call(urlOf(expired), '{}')).status, 404)
  })

  it('refuse bodies other than a JSON object of at most 1 MiB, and keep waiting', async () => {
    const run = await waiting()
    const url = urlOf(run)
    for (const [body, status, code] of [
      ['no', 400, 'HOOK_INVALID_JSON'],
      ['[1]', 400, 'HOOK_INVALID_JSON'],
      ['"text"', 400, 'HOOK_INVALID_JSON'],
      [JSON.stringify({ text: 'x'.repeat(1024 * 1024) }), 413, 'HOOK_PAYLOAD_TOO_LARGE'],
    ] as const) {
      const reply = await call(url, body)
      assert.deepEqual([reply.status, reply.body.error.code], [status, code])
    }
    assert.equal((await app.read(run.id)).status, 'awaiting_input')
    assert.equal((await call(url.slice(0, -1) + (url.endsWith('A') ? 'B' : 'A'), '{}')).status, 404)
    assert.equal((await call(`${app.url}/api/v1/hooks/orchestration-runs/x`, '{}')).status, 404)
    await app.key.post(`/orchestration-runs/${run.id}/pause`)
    assert.equal((await call(url, '{}')).body.error.code, 'ORCHESTRATION_RUN_PAUSED')
    await app.key.post(`/orchestration-runs/${run.id}/resume`)
    assert.equal((await call(url, undefined)).status, 202)
    assert.deepEqual((await app.until(run.id)).artifacts.hook, {})
  })

  it('are shown only to callers who may submit the input: not in events, log lines or the database', async () => {
    const run = await waiting()
    const token = urlOf(run).split('/').at(-1) as string
    await call(urlOf(run), 'no')
    const events = (await app.key.get(`/events?resource_id=${run.id}`)).body.data
    assert.ok(events.some(({ event }: any) => event === 'orchestration_runs.awaiting_input'))
    for (const { id } of events) assert.ok(!JSON.stringify((await app.key.get(`/events/${id}`)).body).includes(token))
    assert.ok(!app.logs.join('\n').includes(token))
    assert.ok(!app.statements.join('\n').includes(token))
  })

  it('are not shown to readers who may not submit the input', async () => {
    const run = await waiting()
    const statement = [
      {
        effect: 'Allow',
        action: ['orchestrations:GetRun', 'orchestrations:ListRuns'],
        resource: [`srn:${app.projectId}:*:*`],
      },
    ]
    const policy = (await app.admin.post('/policies', { document: { statement } })).body
    const made = await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policy.id] })
    const reader = app.as(made.body.secret)
    const read = (await reader.get(`/orchestration-runs/${run.id}`)).body
    const [listed] = (await reader.get('/orchestration-runs')).body.data
    for (const shown of [read, listed]) {
      assert.equal(shown.id, run.id)
      assert.deepEqual(
        [shown.required_actions[0].type, shown.required_actions[0].callback_url, shown.required_action.callback_url],
        ['webhook_receive', null, null],
      )
    }
    assert.ok(urlOf((await app.key.get('/orchestration-runs')).body.data[0]))
  })

  it('remain valid and visible after a key rotation', async () => {
    const run = await waiting()
    const later = await startApp({
      databaseUrl: app.databaseUrl,
      env: { SECRETS_ENCRYPTION_KEY: NEXT_KEY, SECRETS_ENCRYPTION_KEY_PREVIOUS: KEY },
    })
    try {
      const path = `/orchestration-runs/${run.id}`
      assert.equal(pathOf(urlOf((await later.admin.get(path)).body)), pathOf(urlOf(run)))
      const response = await fetch(`${later.url}${pathOf(urlOf(run))}`, { method: 'POST', body: '{"n":3}' })
      assert.equal(response.status, 202)
      assert.deepEqual((await app.until(run.id)).artifacts.hook, { n: 3 })
    } finally {
      await later.close()
    }
  })

  it('leave the diagram of a run with its results', async () => {
    const run = await waiting()
    const path = `/orchestrations/${run.orchestration_id}/diagram`
    const picture = async (query: string, by = app.key) => by.get(`${path}${query}`)
    const shown = String((await picture(`?run_id=${run.id}`)).body)
    assert.match(shown, /class n0 requires_action/)
    assert.ok(!/class n1/.test(shown))
    assert.ok(!/class /.test(String((await picture('')).body)))
    await app.key.patch(`/orchestrations/${run.orchestration_id}`, { nodes: [], edges: [] })
    await call(urlOf(run), '{"n": 1}')
    await app.until(run.id)
    assert.match(String((await picture(`?run_id=${run.id}`)).body), /class n1 completed/)
    const other = await app.run([{ id: 'a', type: 'transform', expression: 1 }])
    assert.equal((await picture(`?run_id=${other.id}`)).body.error.code, 'ORCHESTRATION_RUN_NOT_FOUND')
    const statement = [
      { effect: 'Allow', action: ['orchestrations:GetOrchestration'], resource: [`srn:${app.projectId}:*:*`] },
    ]
    const reader = await app.user(undefined, [{ statement }])
    assert.equal((await reader.get(`${path}?run_id=${run.id}`)).status, 403)
    assert.equal((await reader.get(path)).status, 200)
  })
})
