import assert from 'node:assert/strict'
import type { ServerResponse } from 'node:http'
import { eventually } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { refused, startTarget, type TargetRequest } from './tool-target.ts'

describe('the listing of an mcp tool', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() =>
    startAgentApp({
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' },
      clock: { now: () => new Date(Date.now() + ahead) },
    }),
  )
  /** How far the clock of the processes is ahead. */
  let ahead = 0
  const MINUTE = 61_000
  beforeEach(() => {
    target.requests.length = 0
    target.answer = answered
  })

  /** A server with one tool, whose description says to whom it was listed. */
  const answered = ({ body, headers }: TargetRequest, response: ServerResponse) => {
    if (body === '') return response.writeHead(200).end()
    const { id, method } = JSON.parse(body)
    if (id === undefined) return response.writeHead(202).end()
    const description = `For ${headers['x-svc-context-user'] ?? headers['x-key'] ?? 'all'}`
    const result =
      method === 'tools/list'
        ? { tools: [{ name: 'find', description, inputSchema: { type: 'object' } }] }
        : method === 'tools/call'
          ? { content: [{ type: 'text', text: 'found' }] }
          : { protocolVersion: '2025-06-18', capabilities: {}, serverInfo: { name: 'x', version: '1' } }
    return response
      .writeHead(200, { 'content-type': 'application/json', 'mcp-session-id': 'one' })
      .end(JSON.stringify({ jsonrpc: '2.0', id, result }))
  }
  const broken = (_request: TargetRequest, response: ServerResponse) => response.writeHead(503).end('down')

  const madeTool = async (fields: object = {}) => {
    const body = { project_id: app.projectId, name: 'server', type: 'mcp', mcp: { url: target.url }, ...fields }
    return createdBy(app.admin, '/tools', body)
  }
  const agentOf = (...bindings: object[]) => app.agent({ tool_bindings: bindings })
  const generate = (agent: string, body: object = {}): Promise<any> =>
    createdBy(app.key, `/agents/${agent}/generate?wait=true`, { prompt: 'hello', ...body }, 200)
  /** The number of listings that the server received. */
  const listings = () => target.requests.filter(({ body }) => body.includes('"tools/list"')).length
  /** The text for the model about the tools, and about missing ones. */
  const told = async () => {
    const answer = await fetch(`${app.double.url}/control/requests?kind=chat`)
    const { body } = ((await answer.json()) as any).data.at(-1)
    const [first] = body.messages
    return { description: body.tools?.[0].function.description, note: first.role === 'system' ? first.content : null }
  }

  it('is cached for a minute, and requested again then and when the tool has changed', async () => {
    const tool = await madeTool()
    const agent = await agentOf({ tool_id: tool.id })
    for (let turn = 0; turn < 3; turn++) await generate(agent)
    assert.equal((await told()).description, 'For all')
    // Not even a session was begun for the turns after the first.
    assert.equal(target.requests.filter(({ body }) => body.includes('"initialize"')).length, 1)
    assert.equal(listings(), 1)
    await app.admin.patch(`/tools/${tool.id}`, { description: 'changed' })
    await generate(agent)
    assert.equal(listings(), 2)
    ahead += MINUTE
    await generate(agent)
    await generate(agent)
    assert.equal(listings(), 3)
  })

  it('is used by agents that name a tool alike, and not where the tool offers other actions', async () => {
    const tool = await madeTool()
    await generate(await agentOf({ tool_id: tool.id }))
    await generate(await agentOf({ tool_id: tool.id }))
    assert.equal(listings(), 1)
    await app.admin.patch(`/tools/${tool.id}`, { actions: [] })
    await generate(await agentOf({ tool_id: tool.id }))
    assert.match((await told()).note, /currently unavailable: server/)
  })

  it('is cached per end user where headers identify the end user', async () => {
    const tool = await madeTool()
    const agent = await agentOf({ tool_id: tool.id })
    for (const user of ['ada', 'bob', 'ada', 'bob']) {
      await generate(agent, { tool_context: { user } })
      assert.equal((await told()).description, `For ${user}`)
    }
    assert.equal(listings(), 2)
    await generate(agent)
    assert.equal((await told()).description, 'For all')
  })

  it('is cached per credential that is sent', async () => {
    const secret = { project_id: app.projectId, name: 's', value: 'first value' }
    const { id } = (await app.admin.post('/secrets', secret)).body
    const tool = await madeTool({ mcp: { url: target.url, headers: { 'X-Key': `{{secret:${id}}}` } } })
    const agent = await agentOf({ tool_id: tool.id })
    await generate(agent)
    await generate(agent)
    assert.equal(listings(), 1)
    await app.admin.patch(`/secrets/${id}`, { value: 'second value' })
    await generate(agent)
    assert.equal((await told()).description, 'For second value')
    assert.equal(listings(), 2)
  })

  it('is requested again by every caller who lists the actions of the tool', async () => {
    const tool = await madeTool()
    for (let round = 1; round <= 2; round++) {
      const { body } = await app.admin.get(`/tools/${tool.id}/actions`)
      assert.equal(body.data[0].name, 'find')
      assert.equal(listings(), round)
    }
  })

  it('is not requested from a server that failed twice in a row, until a minute later', async () => {
    const tool = await madeTool({ name: 'dead' })
    const agent = await agentOf({ tool_id: tool.id })
    target.answer = broken
    for (let turn = 0; turn < 5; turn++) await generate(agent)
    // Each of two called once: `initialize` fails.
    assert.equal(target.requests.length, 2)
    assert.match((await told()).note, /currently unavailable: dead/)
    const reasons = await eventually(async () => {
      const query = `project_id=${app.projectId}&kind=tool_resolution_failed&limit=10`
      const { data } = (await app.admin.get(`/activity?${query}`)).body
      const found = data.map(({ detail }: any) => detail.reason)
      return found.filter((reason: string) => /not called before 2/.test(reason)).length === 3 ? found : null
    })
    assert.match(reasons[0], /^Server of tool dead failed 2 times in a row and is not called before /)
    // A caller that lists the actions gets an answer of the server.
    const { meta } = refused(await app.admin.get(`/tools/${tool.id}/actions`), 502, 'TOOL_HTTP_ERROR')
    assert.equal(meta.tool_status_code, 503)
    target.requests.length = 0
    target.answer = answered
    await generate(agent)
    assert.equal(target.requests.length, 0)
    ahead += MINUTE
    await generate(agent)
    assert.equal((await told()).description, 'For all')
    // It is whole again: one failure is no reason to stop calling.
    ahead += MINUTE
    target.answer = broken
    await generate(agent)
    target.answer = answered
    await generate(agent)
    assert.equal((await told()).description, 'For all')
  })

  it('is requested from a server that answers, whatever it refuses', async () => {
    const tool = await madeTool({ name: 'choosy' })
    const agent = await agentOf({ tool_id: tool.id })
    target.answer = ({ body }, response) =>
      body.includes('"tools/list"')
        ? response.writeHead(401).end('who are you?')
        : answered({ body, headers: {} } as never, response)
    for (let turn = 0; turn < 4; turn++) await generate(agent)
    assert.equal(listings(), 4)
  })
})
