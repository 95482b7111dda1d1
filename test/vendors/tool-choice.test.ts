import assert from 'node:assert/strict'
import { type Client, startApp, type TestApp } from '../support/app.ts'
import { postedBy } from '../support/replies.ts'
import { profiles, providerFields } from '../support/vendors/profiles.ts'
import { type Simulators, startSimulators } from '../support/vendors/server.ts'
import { startToolServer, type ToolServer } from './tool-server.ts'

describe('allowed tools', () => {
  let app: TestApp
  let simulators: Simulators
  let tools: ToolServer
  let key: Client
  let lanes = 0

  before(async () => {
    ;[simulators, tools] = await Promise.all([startSimulators(), startToolServer()])
    app = await startApp({ workers: ['generation'], env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } })
    const project = await app.projectWith([
      'agents:*',
      'ai-providers:CreateAiProvider',
      'chats:*',
      'generations:*',
      'secrets:*',
      'tools:*',
    ])
    key = project.key
  })
  after(() => Promise.all([app?.close(), simulators?.close(), tools?.close()]))

  const made = (at: string, body: object) => postedBy(key, at, body)

  const providerOf = async (profile: string) => {
    const lane = `choice-${++lanes}`
    const secret = await made('/secrets', { name: lane, value: lane })
    const fields = providerFields(profiles.find(({ name }) => name === profile)!, simulators.url)
    const { id } = await made('/ai-providers', { ...fields, secret_id: secret.id })
    const sent = () => simulators.calls(lane).at(-1)!.body
    return { id: id as string, model: fields.default_model, lane, sent }
  }

  const agentOf = async (ai_provider_id: string, fields: object = {}) => {
    const tool_bindings = ['look', 'pay', 'odd.name'].map(name => ({
      tool: { name, type: 'http', execute: { url: `${tools.url}/${name}` } },
    }))
    return (await made('/agents', { name: 'agent', ai_provider_id, tool_bindings, ...fields })).id as string
  }

  const offered = ({ tools: all = [] }: any): string[] =>
    all.flatMap((tool: any) => tool.functionDeclarations ?? tool).map((tool: any) => tool.name ?? tool.function.name)

  const only = (mode: string, ...tool_names: string[]) => ({ type: 'allowed_tools', mode, tool_names })

  it('are passed to a vendor that has them, with all tools', async () => {
    const { id, sent } = await providerOf('openai responses')
    const agent = await agentOf(id)
    await made(`/agents/${agent}/generate?wait=true`, { prompt: 'Hi', tool_choice: only('auto', 'look', 'odd_name') })
    assert.deepEqual(offered(sent()), ['look', 'pay', 'odd_name'])
    assert.deepEqual(sent().tool_choice, {
      type: 'allowed_tools',
      mode: 'auto',
      tools: [
        { type: 'function', name: 'look' },
        { type: 'function', name: 'odd_name' },
      ],
    })
  })

  for (const profile of ['openai chat', 'anthropic', 'google', 'custom mistral'])
    it(`are the tools of a request to ${profile}`, async () => {
      const { id, sent, lane } = await providerOf(profile)
      const stop_conditions = [{ type: 'has_tool_call', tool_name: 'look' }]
      const agent = await agentOf(id, { stop_conditions, tool_choice: only('required', 'look', 'gone') })
      simulators.plan(lane, { tool_calls: [{ name: '*', args: {} }] })
      await made(`/agents/${agent}/generate?wait=true`, { prompt: 'Hi' })
      assert.deepEqual(offered(sent()), ['look'])
      const { tool_choice, toolConfig } = sent()
      const mode = tool_choice?.type ?? tool_choice ?? toolConfig.functionCallingConfig.mode
      assert.match(mode, /^(required|any|ANY)$/)
    })

  it('that are all unavailable let the model call none', async () => {
    const { id, sent } = await providerOf('openai chat')
    const agent = await agentOf(id)
    await made(`/agents/${agent}/generate?wait=true`, { prompt: 'Hi', tool_choice: only('auto', 'gone') })
    assert.equal(sent().tool_choice, 'none')
  })

  it('of which one must be called need a condition that ends the turn, as other forced choices', async () => {
    const { id } = await providerOf('openai chat')
    const refused = await key.post('/agents', {
      name: 'x',
      ai_provider_id: id,
      tool_choice: only('required', 'look'),
    })
    assert.equal(refused.body.error.code, 'FORCED_TOOL_CHOICE_CANNOT_STOP')
    assert.equal(
      (await key.post('/agents', { name: 'x', ai_provider_id: id, tool_choice: only('auto', 'a') })).status,
      201,
    )
  })

  const functionTool = (name: string) => ({ type: 'function', function: { name, parameters: { type: 'object' } } })
  const chatChoice = (...names: string[]) => ({
    type: 'allowed_tools',
    allowed_tools: { mode: 'auto', tools: names.map(name => ({ type: 'function', function: { name } })) },
  })
  const messages = [{ role: 'user', content: 'Hi' }]

  it('of clients of the OpenAI API reach the model', async () => {
    const { id, model, sent } = await providerOf('openai chat')
    const body = { model: `${id}/${model}`, messages, tools: ['a', 'b', 'c'].map(functionTool) }
    const chat = await key.post('//openai/v1/chat/completions', { ...body, tool_choice: chatChoice('a', 'c') })
    assert.equal(chat.status, 200, JSON.stringify(chat.body))
    assert.equal(chat.headers.get('x-svc-ignored-params'), null)
    assert.deepEqual(offered(sent()), ['a', 'c'])
    const response = await made('//openai/v1/responses', {
      model: body.model,
      input: 'Hi',
      tools: ['a', 'b'].map(name => ({ type: 'function', name, parameters: { type: 'object' } })),
      tool_choice: { type: 'allowed_tools', mode: 'auto', tools: [{ type: 'function', name: 'b' }] },
    })
    assert.equal(response.status, 'completed')
    assert.deepEqual(offered(sent()), ['b'])
    for (const tool_choice of [chatChoice('gone'), { type: 'allowed_tools' }])
      assert.equal((await key.post('//openai/v1/chat/completions', { ...body, tool_choice })).status, 400)
  })

  it('of a client of an agent are among its own tools', async () => {
    const { id, sent } = await providerOf('openai chat')
    const agent = await agentOf(id, { accept_client_tools: true })
    await made('//openai/v1/chat/completions', {
      model: agent,
      messages,
      tools: ['a', 'b'].map(functionTool),
      tool_choice: chatChoice('b'),
    })
    assert.deepEqual(offered(sent()), ['look', 'pay', 'odd_name', 'b'])
  })

  it('of a completion of a chat are among its tools', async () => {
    const { id, sent } = await providerOf('openai chat')
    const body = { ai_provider_id: id, messages, tools: ['a', 'b'].map(functionTool) }
    await made('/chat/completions', { ...body, tool_choice: chatChoice('b') })
    assert.deepEqual(offered(sent()), ['b'])
    const refused = await key.post('/chat/completions', { ...body, tool_choice: chatChoice('b', 'gone') })
    assert.equal(refused.body.error.meta.problems[0].path, 'tool_choice.allowed_tools.tools[1].function.name')
  })
})
