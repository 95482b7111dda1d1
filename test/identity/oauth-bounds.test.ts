import assert from 'node:assert/strict'
import { startDouble } from '#local/double/server.ts'
import type { Client } from '../support/app.ts'
import { allowing, REDIRECT, refresh, register, startOauthApp, tokensOf } from '../support/oauth.ts'
import { bodyOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

/** Work that a token of a grant starts stays within the grant, and ends with it. */
describe('work that an OAuth token starts', function () {
  this.timeout(120_000)
  const double = forSuite(() => startDouble({}))
  const app = forSuite(() => startOauthApp({ workers: ['generation', 'orchestration', 'trigger'] }))
  let projectId: string
  let user: Client & { id: string }
  let client_id: string
  let modules: string[]
  let counter = 0

  const named = (what: string): string => `${what}-${++counter}`
  const made = (by: Client, path: string, body: object): Promise<any> =>
    bodyOf(by.post(path, { project_id: projectId, ...body }))
  const exists = async (name: string): Promise<boolean> =>
    (await bodyOf(app.admin.get(`/secrets?project_id=${projectId}&limit=100`))).data.some(
      (each: any) => each.name === name,
    )

  /** A caller with a token of a new grant for all modules except the given ones. */
  async function granted(...without: string[]) {
    const selection = { kind: 'modules', modules: modules.filter(name => !without.includes(name)) }
    const consent = { project_id: projectId, selection }
    const tokens = await tokensOf(app.base, { client_id, redirect_uri: REDIRECT, user, consent })
    const [{ id }] = (await user.get(`/oauth/grants?client_id=${client_id}&limit=1`)).body.data
    return { api: app.as(tokens.access_token), refresh_token: tokens.refresh_token, id: id as string }
  }

  /** A tool that creates a secret, and a graph that calls it, after a human node if `human` is set. */
  async function effect(by: Client, { human = false } = {}) {
    const secret = named('secret')
    const tool = await made(by, '/tools', {
      name: named('maker'),
      type: 'platform',
      actions: ['create-secret'],
      preset_parameters: { action: 'create-secret', name: secret, value: 'v' },
    })
    const graph = await made(by, '/orchestrations', {
      name: named('graph'),
      nodes: [
        ...(human ? [{ id: 'h', type: 'human' }] : []),
        { id: 'a', type: 'tool', tool_id: tool.id, operation_id: 'create-secret' },
      ],
      edges: human ? [{ from: 'h', to: 'a' }] : [],
    })
    return { secret, tool, graph }
  }
  const start = (by: Client, graph: { id: string }): Promise<any> =>
    bodyOf(by.post('/orchestration-runs', { orchestration_id: graph.id, wait: true }))
  const answer = (run: { id: string }): Promise<any> =>
    bodyOf(user.post(`/orchestration-runs/${run.id}/human-input`, { node_id: 'h', output: {} }))

  before(async () => {
    projectId = (await bodyOf(app.admin.post('/projects', { name: 'bounds' }))).id
    user = await app.user(undefined, [allowing(projectId)])
    ;({ client_id } = await register(app.base))
    modules = (await bodyOf(user.get('/oauth/consent-info'))).modules.map(({ module }: { module: string }) => module)
  })

  it('has the granted permissions and is attributed to the grant', async () => {
    const { api, id } = await granted()
    const { secret, graph } = await effect(user)
    const run = await start(api, graph)
    assert.equal(run.status, 'succeeded', JSON.stringify(run.error))
    assert.deepEqual(run.started_by, { kind: 'oauth_grant', id })
    assert.ok(await exists(secret))
  })

  it('has no other permissions in a run, a nested run and an agent turn', async () => {
    const { api } = await granted('secrets')
    const { secret, tool, graph } = await effect(user)
    const run = await start(api, graph)
    assert.equal(run.status, 'failed')
    assert.equal(run.error.meta.tool_status_code, 403, JSON.stringify(run.error))
    const outer = await made(user, '/orchestrations', {
      name: named('outer'),
      nodes: [{ id: 'n', type: 'sub_orchestration', orchestration_id: graph.id }],
      edges: [],
    })
    assert.equal((await start(api, outer)).status, 'failed')
    const provider = { name: 'double', provider: 'custom', default_model: 'double-1', base_url: `${double.url}/v1` }
    const ai_provider_id = (await made(app.admin, '/ai-providers', provider)).id
    const agent = await made(user, '/agents', { name: 'agent', ai_provider_id, tool_bindings: [{ tool_id: tool.id }] })
    const script = [{ tool_calls: [{ name: `${tool.name}_create-secret`, args: {} }] }, { text: 'done' }]
    const prompt = `@double ${JSON.stringify(script)}`
    const turn = await bodyOf(api.post(`/agents/${agent.id}/generate?wait=true`, { prompt }))
    const { steps } = await bodyOf(app.admin.get(`/generations/${turn.id}/transcript`))
    const [{ error }] = steps.flatMap((step: any) => step.tool_results)
    assert.equal(error.meta.tool_status_code, 403, JSON.stringify(error))
    assert.equal(await exists(secret), false)
  })

  it('keeps the scopes of a token that was issued for fewer than the grant has', async () => {
    const { refresh_token } = await granted()
    const few = modules.filter(name => name !== 'secrets').map(name => `${name}:*`)
    const { body } = await refresh(app.base, client_id, refresh_token, { scope: few.join(' ') })
    const { secret, graph } = await effect(user, { human: true })
    const run = await start(app.as(body.access_token), graph)
    const done = await answer(run)
    assert.equal(done.status, 'failed', JSON.stringify(done))
    assert.equal(done.error.meta.tool_status_code, 403, JSON.stringify(done.error))
    assert.equal(await exists(secret), false)
  })

  it('is narrowed with the grant while it waits', async () => {
    const { api, id } = await granted()
    const { secret, graph } = await effect(user, { human: true })
    const run = await start(api, graph)
    const selection = { kind: 'modules', modules: modules.filter(name => name !== 'secrets') }
    assert.equal((await user.patch(`/oauth/grants/${id}`, { selection })).status, 200)
    const done = await answer(run)
    assert.equal(done.status, 'failed', JSON.stringify(done))
    assert.equal(done.error.meta.tool_status_code, 403, JSON.stringify(done.error))
    assert.equal(await exists(secret), false)
  })

  it('is refused after the grant ends, regardless of who continues it', async () => {
    const { api, id } = await granted()
    const { secret, graph } = await effect(user, { human: true })
    const run = await start(api, graph)
    assert.equal((await user.delete(`/oauth/grants/${id}`)).status, 204)
    const done = await answer(run)
    assert.equal(done.status, 'failed', JSON.stringify(done))
    assert.equal(done.error.code, 'UNAUTHORIZED', JSON.stringify(done.error))
    assert.equal(await exists(secret), false)
  })

  it('is restricted in definitions that the token wrote: a trigger, and a tool that others call', async () => {
    const { api, id } = await granted('secrets')
    const { graph, secret } = await effect(user)
    const trigger = await made(api, '/triggers', {
      name: named('trigger'),
      type: 'manual',
      target_type: 'orchestration',
      target_id: graph.id,
    })
    assert.deepEqual(trigger.run_as, { kind: 'oauth_grant', id })
    const firing = await bodyOf(user.post(`/triggers/${trigger.id}/fire`))
    assert.equal(firing.status, 'failed', JSON.stringify(firing))
    const own = await effect(api)
    const called = await start(user, own.graph)
    assert.equal(called.status, 'failed', JSON.stringify(called))
    for (const name of [secret, own.secret]) assert.equal(await exists(name), false)
    assert.equal((await user.delete(`/oauth/grants/${id}`)).status, 204)
    const late = await user.post(`/triggers/${trigger.id}/fire`)
    assert.ok(JSON.stringify(late.body).includes('TRIGGER_CREATOR_UNAVAILABLE'), JSON.stringify(late.body))
  })
})
