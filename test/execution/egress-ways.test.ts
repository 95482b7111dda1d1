import assert from 'node:assert/strict'
import { INTERNAL_HOSTS } from '../support/addresses.ts'
import { eventually, startApp, type TestApp } from '../support/app.ts'
import { startReceiver } from '../support/receiver.ts'
import { call, json, made, refused, startTarget, type Target } from './tool-target.ts'

describe('no way out leads to an address that is not public:', function () {
  this.timeout(180_000)
  let app: TestApp
  let key: Awaited<ReturnType<TestApp['project']>>['key']
  let projectId: string
  /** The one that the deployment allows. */
  let target: Target
  /** What listens on every IPv4 address of this machine. */
  let stranger: Target

  before(async () => {
    target = await startTarget()
    stranger = await startTarget('0.0.0.0')
    const env = { EGRESS_ALLOW_HOSTS: `127.0.0.1:${target.port}` }
    app = await startApp({ env, workers: ['delivery', 'generation'] })
    ;({ id: projectId, key } = await app.project())
  })
  after(async () => {
    await app?.close()
    await target?.close()
    await stranger?.close()
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
    const tool = await made(key, {})
    await each(async (url, host, address) => {
      assert.equal((await key.patch(`/tools/${tool.id}`, { execute: { url } })).status, 200)
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
      assert.equal((await key.patch(`/tools/${tool.id}`, { mcp: { url } })).status, 200)
      blocked(await key.get(`/tools/${tool.id}/actions`), host, address)
    })
  })

  it('the token endpoint of a tool', async () => {
    target.answer = json({})
    const tool = await made(key, {})
    await each(async (token_url, host, address) => {
      const auth = { type: 'oauth2_client_credentials', token_url, client_id: 'a', client_secret: 'b' }
      const execute = { url: `${target.url}/x`, auth }
      assert.equal((await key.patch(`/tools/${tool.id}`, { execute })).status, 200)
      blocked(await call(key, tool.id), host, address)
    })
  })

  it('a provider of models, listing them and in turns', async () => {
    const provider = { name: 'p', provider: 'custom', default_model: 'm', base_url: 'https://example.com/v1' }
    const { body } = await app.admin.post('/ai-providers', { project_id: projectId, ...provider })
    const agent = await key.post('/agents', { name: 'a', ai_provider_id: body.id })
    assert.equal(agent.status, 201, JSON.stringify(agent.body))
    await each(async base_url => {
      assert.equal((await app.admin.patch(`/ai-providers/${body.id}`, { base_url })).status, 200)
      const listed = refused(await app.admin.get(`/ai-providers/${body.id}/models`), 400, 'AI_PROVIDER_MISCONFIGURED')
      assert.equal(listed.meta.reason, 'egress_blocked', base_url)
      const messages = [{ role: 'user', content: 'x' }]
      const turn = await key.post(`/agents/${agent.body.id}/generate?wait=true`, { messages })
      assert.equal(refused(turn, 400, 'AI_PROVIDER_MISCONFIGURED').meta.reason, 'egress_blocked', base_url)
    })
  })

  it('a webhook', async () => {
    const { key } = await app.project()
    const receiver = await startReceiver()
    const { body: hook } = await key.post('/webhooks', { name: 'h', url: receiver.url, events: ['secrets.*'] })
    await each(async (url, host, address) => {
      assert.equal((await key.patch(`/webhooks/${hook.id}`, { url })).status, 200)
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
    assert.equal(receiver.requests.length, 0)
    await receiver.close()
  })
})
