import assert from 'node:assert/strict'
import { INTERNAL_HOSTS } from '../support/addresses.ts'
import { eventually, startApp, type TestApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { call, json, made, refused, startTarget, warnedAt } from './tool-target.ts'

describe('no way out leads to an address that is not public:', function () {
  this.timeout(180_000)
  let app: TestApp
  let key: Awaited<ReturnType<TestApp['project']>>['key']
  let projectId: string
  /** The address that the deployment allows. */
  const target = forSuite(startTarget)
  /** What listens on every IPv4 address of this machine. */
  const stranger = forSuite(() => startTarget('0.0.0.0'))

  before(async () => {
    const env = { EGRESS_ALLOW_HOSTS: `127.0.0.1:${target.port}` }
    app = await startApp({ env, workers: ['delivery', 'generation'] })
    ;({ id: projectId, key } = await app.project())
  })
  after(async () => {
    await app?.close()
  })

  const blocked = (reply: Awaited<ReturnType<typeof call>>, host: string, address: string | null) => {
    const { meta } = refused(reply, 403, 'TOOL_EGRESS_BLOCKED')
    assert.equal(meta.tool_address, address, host)
  }
  const each = async (work: (url: string, host: string, address: string) => Promise<unknown>) => {
    for (const [host, address] of INTERNAL_HOSTS) await work(`http://${host}:${stranger.port}/x`, host, address)
    assert.equal(stranger.connections, 0)
  }

  it('a tool that sends requests', async () => {
    const tool = await made(key, { execute: { url: `${target.url}/x` } })
    await each(async (url, host, address) => {
      warnedAt(await key.patch(`/tools/${tool.id}`, { execute: { url } }), 'execute.url')
      blocked(await call(key, tool.id), host, address)
    })
  })

  it('a redirect that a tool follows', async () => {
    const tool = await made(key, { execute: { url: `${target.url}/x` } })
    await each(async (location, host, address) => {
      target.answer = (_request, response) => response.writeHead(307, { location }).end()
      blocked(await call(key, tool.id), host, address)
    })
  })

  it('a tool of an MCP server', async () => {
    const tool = await made(key, { type: 'mcp', execute: undefined, mcp: { url: `${target.url}/mcp` } })
    await each(async (url, host, address) => {
      warnedAt(await key.patch(`/tools/${tool.id}`, { mcp: { url } }), 'mcp.url')
      blocked(await key.get(`/tools/${tool.id}/actions`), host, address)
    })
  })

  it('the token endpoint of a tool', async () => {
    target.answer = json({})
    const auth = { type: 'oauth2_client_credentials', client_id: 'a', client_secret: 'b' }
    const asking = (token_url: string) => ({ execute: { url: `${target.url}/x`, auth: { ...auth, token_url } } })
    const tool = await made(key, asking(`${target.url}/token`))
    await each(async (token_url, host, address) => {
      warnedAt(await key.patch(`/tools/${tool.id}`, asking(token_url)), 'execute.auth.token_url')
      blocked(await call(key, tool.id), host, address)
    })
  })

  it('a provider of models, listing them and in turns', async () => {
    const provider = { name: 'p', provider: 'custom', default_model: 'm', base_url: 'https://example.com/v1' }
    const { body } = await app.admin.post('/ai-providers', { project_id: projectId, ...provider })
    const agent = await key.post('/agents', { name: 'a', ai_provider_id: body.id })
    assert.equal(agent.status, 201, JSON.stringify(agent.body))
    await each(async base_url => {
      warnedAt(await app.admin.patch(`/ai-providers/${body.id}`, { base_url }), 'base_url')
      const listed = refused(await app.admin.get(`/ai-providers/${body.id}/models`), 400, 'AI_PROVIDER_MISCONFIGURED')
      assert.equal(listed.meta.reason, 'egress_blocked', base_url)
      const messages = [{ role: 'user', content: 'x' }]
      const turn = await key.post(`/agents/${agent.body.id}/generate?wait=true`, { messages })
      assert.equal(refused(turn, 400, 'AI_PROVIDER_MISCONFIGURED').meta.reason, 'egress_blocked', base_url)
    })
  })

  it('and a write that names one is accepted with a warning, in any field, as any name', async () => {
    for (const host of ['169.254.169.254', 'localhost', 'LOCALHOST.', 'api.localhost', '[::1]', '0x7f.1']) {
      const url = `http://${host}:${stranger.port}/x`
      const hook = warnedAt(await key.post('/webhooks', { name: 'x', url, events: ['*'] }), 'url')
      assert.equal(hook.url, url)
      assert.match(hook.secret, /^whsec_/)
      for (const write of [key.patch, key.put])
        warnedAt(await write.call(key, `/webhooks/${hook.id}`, { name: 'y' }), 'url')
      // Only writes have the warning.
      const stored = (await key.get(`/webhooks/${hook.id}`)).body
      assert.deepEqual([stored.url, 'warnings' in stored], [url, false])
      assert.ok(!('warnings' in (await key.patch(`/webhooks/${hook.id}`, { url: `${target.url}/h` })).body))
      assert.equal((await key.delete(`/webhooks/${hook.id}`)).status, 204)

      const provider = { name: 'x', default_model: 'm', provider: 'custom' }
      const own = warnedAt(await key.post('/ai-providers', { ...provider, base_url: url }), 'base_url')
      const execute = { url: `${url}/{id}` }
      warnedAt(await key.post('/tools', { name: 'x', execute }), 'execute.url')
      warnedAt(await key.post('/tools', { name: 'x', type: 'mcp', mcp: { url } }), 'mcp.url')
      const steps = [{ id: 'a', tool: { name: 'x', execute: { url } } }]
      const step = await key.post('/tools', { name: 'x', type: 'pipeline', pipeline: { steps } })
      warnedAt(step, 'pipeline.steps[0].tool.execute.url')
      const tool_bindings = [{ tool: { name: 'x', execute: { url } } }]
      const agent = { name: 'x', ai_provider_id: own.id, tool_bindings }
      const bound = warnedAt(await key.post('/agents', agent), 'tool_bindings[0].tool.execute.url')
      warnedAt(await key.patch(`/agents/${bound.id}`, { name: 'y' }), 'tool_bindings[0].tool.execute.url')
      assert.ok(!('warnings' in (await key.patch(`/agents/${bound.id}`, { tool_bindings: [] })).body))
      warnedAt(await key.post(`/agents/${bound.id}/versions/1/restore`), 'tool_bindings[0].tool.execute.url')
    }
    for (const url of [target.url, 'http://internal.test/x', 'https://example.com/x']) {
      const { status, body } = await key.post('/tools', { name: 'x', execute: { url } })
      assert.deepEqual([status, 'warnings' in body], [201, false], url)
    }
    // The contract refuses only an address that is no URL of the web.
    for (const url of ['ftp://example.com/', '/hook', 'http://user:password@example.com/'])
      refused(await key.post('/webhooks', { name: 'x', url, events: ['*'] }), 400, 'VALIDATION_FAILED')
    assert.equal(stranger.connections, 0)
  })

  it('a webhook is refused at its delivery', async () => {
    const { key } = await app.project()
    const { body: hook } = await key.post('/webhooks', { name: 'h', url: `${target.url}/h`, events: ['secrets.*'] })
    const before = target.requests.length
    await each(async (url, host, address) => {
      warnedAt(await key.patch(`/webhooks/${hook.id}`, { url }), 'url')
      const sent = await key.post('/secrets', { name: `s${Math.random()}`, value: 'v' })
      assert.equal(sent.status, 201)
      const delivery = await eventually(
        async () => {
          const { body } = await key.get(`/webhook-deliveries?webhook_id=${hook.id}&limit=1`)
          return body.data[0]?.status === 'failed' && body.data[0].response_body.includes(address) && body.data[0]
        },
        { within: 60_000, what: `the end of the delivery to ${host}` },
      )
      assert.equal(delivery.attempts, 0)
    })
    assert.equal(target.requests.length, before)
  })
})
