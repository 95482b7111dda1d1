import { type Client, eventually, type Reply as HttpReply } from '../support/app.ts'
import type { Noise, Plan } from '../support/vendors/plan.ts'
import type { Profile } from '../support/vendors/profiles.ts'
import type { Recorded } from '../support/vendors/server.ts'
import { PIXELS, type ToolServer } from './tool-server.ts'

/** What a turn came to: its text, or why it failed. */
export type Turn = { text: string; error: string | null; body: any }

/** A provider of one profile, on which a capability is tried. */
export type Cell = {
  profile: Profile
  key: Client
  providerId: string
  tools: ToolServer
  plan(plan: Plan): void
  /** Model calls since the plan was set. */
  calls(): Recorded[]
  /** A new agent with these settings; without any, the same for all capabilities. */
  agent(fields?: Record<string, unknown>): Promise<string> | string
  turn(agent: string, body: object): Promise<Turn>
  /** A unique path of an http tool. */
  toolPath(): string
}

/** Returns null if the capability works, `not offered`, or the failure. */
export type Capability = (cell: Cell) => Promise<string | null>

export const NOT_OFFERED = 'not offered'
const OBJECT = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
/** The image of a result where a vendor takes images. */
const IMAGES = new RegExp(
  `("bytes":"|data:image/png;base64,|"type":"base64"[^{}]*"data":"|"inlineData":{[^{}]*"data":")${PIXELS.replaceAll('+', '\\+')}`,
  'g',
)
/** A document without pages. */
const PDF = Buffer.from('%PDF-1.4\n%%EOF').toString('base64')
const PARIS = { name: '*', args: { city: 'Paris' } }

const httpTool = (cell: Cell, fields: object = {}, path = cell.toolPath()) => ({
  tool: { name: 'weather', type: 'http', parameters: OBJECT, execute: { url: `${cell.tools.url}/${path}` }, ...fields },
})

/** Whether a turn ended with a text. */
const says = (turn: Turn, text: string): string | null =>
  turn.error ?? (turn.text === text ? null : `the text is ${JSON.stringify(turn.text)}`)

/** A turn of `steps` calls, each of whose results reaches the model. */
const toolTurn =
  (steps: number, reply: object = {}, perStep = 1): Capability =>
  async cell => {
    const path = cell.toolPath()
    const agent = await cell.agent({ tool_bindings: [httpTool(cell, {}, path)] })
    const step = { tool_calls: Array(perStep).fill(PARIS), ...reply }
    cell.plan([...Array(steps).fill(step), { text: 'done' }])
    const turn = await cell.turn(agent, { prompt: 'Weather of Paris?' })
    const failure = says(turn, 'done')
    if (failure) return failure
    const made = cell.tools.received(path).length
    if (made !== steps * perStep) return `${made} calls`
    return JSON.stringify(cell.calls().at(-1)!.body).includes('sun') ? null : 'the result does not reach the model'
  }

const history =
  (messages: object[]): Capability =>
  async cell => {
    const agent = await cell.agent()
    cell.plan({ text: 'fine' })
    return says(await cell.turn(agent, { messages }), 'fine')
  }

/** The number of tools that a request offers, in the format of any vendor. */
const toolsOf = ({ body }: Recorded): number =>
  [body.toolConfig?.tools ?? body.tools ?? []].flat().flatMap(tool => tool.functionDeclarations ?? [tool]).length

/** A tool with a schema or name is offered next to another one. */
const tool =
  (fields: object): Capability =>
  async cell => {
    const agent = await cell.agent({ tool_bindings: [httpTool(cell), httpTool(cell, { name: 'odd', ...fields })] })
    cell.plan({ text: 'fine' })
    const failure = says(await cell.turn(agent, { prompt: 'Hello' }), 'fine')
    if (failure) return failure
    const offered = toolsOf(cell.calls()[0]!)
    return offered === 2 ? null : `${offered} of 2 tools are offered`
  }

const schema = (properties: object, more: object = {}) => tool({ parameters: { type: 'object', properties, ...more } })

const answer =
  (output_schema: object, text: string): Capability =>
  async cell => {
    const agent = await cell.agent({ output_schema })
    // Some vendors are given the schema as a tool.
    cell.plan(call =>
      /"name":"json"/.test(JSON.stringify(call.body.tools ?? call.body.toolConfig ?? null))
        ? { tool_calls: [{ name: 'json', args: JSON.parse(text) }] }
        : { text },
    )
    const { error, body } = await cell.turn(agent, { prompt: 'Hello' })
    return error ?? (JSON.stringify(body.output.object) === text ? null : JSON.stringify(body.output.object))
  }

const said = (role: 'user' | 'assistant', content: string) => ({ role, content })
const value = (name: string, fields: object) => ({
  type: 'object',
  properties: { [name]: { type: 'string', ...fields } },
  required: [name],
  additionalProperties: false,
})

/** A call of an abnormal answer must not be made; the turn has this number of steps. */
const notCalled =
  (finish: (profile: Profile) => string, args: object, steps: number): Capability =>
  async cell => {
    const path = cell.toolPath()
    const agent = await cell.agent({ tool_bindings: [httpTool(cell, {}, path)], max_steps: 2 })
    cell.plan([{ tool_calls: [{ name: '*', ...args }], finish: finish(cell.profile) }, { text: 'done' }])
    await cell.turn(agent, { prompt: 'Weather of Paris?', stream: true })
    if (cell.tools.received(path).length > 0) return 'the call is made'
    const statuses = cell.calls().map(({ status }) => status)
    return statuses.join() === Array(steps).fill(200).join() ? null : `the calls of the model are ${statuses}`
  }

/** A stream with lines without meaning. */
const noisy =
  (noise: readonly Noise[]): Capability =>
  async cell => {
    cell.plan({ text: 'hello there', noise })
    return says(await cell.turn(await cell.agent(), { prompt: 'Hello', stream: true }), 'hello there')
  }

/** A session with auto_generate, and its turns. */
async function session(cell: Cell, fields: Record<string, unknown>) {
  const agent_id = await cell.agent(fields)
  const { body } = await cell.key.post('/sessions', { agent_id, auto_generate: true })
  return {
    id: body.id as string,
    async say(message: string): Promise<string | null> {
      const reply: HttpReply = await cell.key.post(`/sessions/${body.id}/messages?wait=true`, { message })
      if (reply.status >= 400) return `${reply.body.error.code}: ${reply.body.error.message}`
      return null
    },
    read: async () => (await cell.key.get(`/sessions/${body.id}`)).body,
  }
}

export const capabilities: Record<string, Capability> = {
  async plain(cell) {
    cell.plan({ text: 'hello there' })
    return says(await cell.turn(await cell.agent(), { prompt: 'Hello' }), 'hello there')
  },

  async stream(cell) {
    cell.plan({ text: 'hello there' })
    return says(await cell.turn(await cell.agent(), { prompt: 'Hello', stream: true }), 'hello there')
  },

  'tools, 1 step': toolTurn(1),
  'tools, 3 steps': toolTurn(3),
  'tools, 10 steps': toolTurn(10),
  'parallel calls': toolTurn(1, {}, 2),
  'history begins with assistant': history([said('assistant', 'Welcome!'), said('user', 'Hello')]),
  'history ends with assistant': history([said('user', 'Hello'), said('assistant', 'Welcome!')]),
  'blank answer in the history': history([said('user', 'Hello'), said('assistant', '\n\n'), said('user', 'Well?')]),
  'blank user message in the history': history([said('user', ' '), said('assistant', 'Hm?'), said('user', 'Well?')]),
  'blank text before a call': toolTurn(2, { text: '\n\n' }),

  async 'window of 2 messages'(cell) {
    const { say } = await session(cell, { tool_bindings: [httpTool(cell)], max_context_messages: 2 })
    for (const message of ['one', 'two', 'three']) {
      cell.plan([{ tool_calls: [PARIS] }, { text: 'done' }])
      const failure = await say(message)
      if (failure) return failure
    }
    return null
  },

  async 'conversation of two agents'(cell) {
    const { id } = (await cell.key.post('/conversations', {})).body
    await cell.key.post(`/conversations/${id}/messages`, { message: 'Hello', role: 'user' })
    for (const agent of [await cell.agent(), await cell.agent({})]) {
      cell.plan({ text: 'fine' })
      const { status, body } = await cell.key.post(`/conversations/${id}/generate?wait=true`, { agent_id: agent })
      if (status !== 200) return `${body.error.code}: ${body.error.message}`
    }
    return null
  },

  'tool name with a dot': tool({ name: 'orders.find' }),
  'tool name with a digit first': tool({ name: '3d_view' }),
  'long tool name': tool({ name: `find_${'x'.repeat(70)}` }),
  'schema with a union at the top': schema(
    { a: { type: 'string' }, b: { type: 'string' } },
    {
      anyOf: [{ required: ['a'] }, { required: ['b'] }],
    },
  ),
  'schema with odd keys': schema({ '$filter by': { type: 'string' } }),
  'schema with bare types': schema({ list: { type: 'array' }, map: { type: 'object' } }),
  'schema without properties': tool({ parameters: { type: 'object' } }),
  'schema with a tuple': tool({
    parameters: {
      $schema: 'http://json-schema.org/draft-07/schema#',
      type: 'object',
      properties: { pair: { type: 'array', items: [{ type: 'number' }, { type: 'number' }] } },
    },
  }),
  'schema with references': schema(
    { a: { $ref: '#/$defs/a', description: 'A', title: 'A' } },
    {
      $defs: { a: { type: 'string' } },
    },
  ),
  'answer schema': answer(value('city', {}), '{"city":"Paris"}'),
  'answer schema with odd keywords': answer(value('city', { format: 'city', default: 'Paris' }), '{"city":"Paris"}'),

  async 'reasoning kept'(cell) {
    const { thinking, provider } = cell.profile
    if (!thinking) return NOT_OFFERED
    const agent = await cell.agent({
      tool_bindings: [httpTool(cell)],
      ...(thinking.model && { model: thinking.model }),
      ...(thinking.options && { provider_options: { [provider]: thinking.options } }),
    })
    cell.plan([
      { reasoning: 'I see 1.', tool_calls: [PARIS] },
      { reasoning: 'I see 2.', tool_calls: [PARIS] },
      { text: 'done' },
    ])
    const failure = says(await cell.turn(agent, { prompt: 'Weather of Paris?' }), 'done')
    if (failure) return failure
    const [, , last] = cell.calls()
    const sent = JSON.stringify(last!.body)
    const isBack = sent.includes('I see 1.') || /"(rs_\w+|thoughtSignature":"(?!skip))/.test(sent)
    return isBack ? null : 'the reasoning is not sent back'
  },

  async 'stream without its end'(cell) {
    cell.plan({ text: 'one two three four five six', cut: { after: 5 } })
    const { error, text } = await cell.turn(await cell.agent(), { prompt: 'Hello', stream: true })
    if (cell.calls().some(({ status }) => status !== 200)) return 'the request is refused'
    return error ? null : `completed: ${JSON.stringify(text)}`
  },

  'call cut by the limit': notCalled(({ finish }) => finish.cut, { args: { city: 'Par' } }, 2),
  'call of a refused answer': notCalled(({ finish }) => finish.refused, { args: { city: 'Paris' } }, 1),

  async 'malformed call'(cell) {
    const { malformed } = cell.profile
    if (!malformed) return NOT_OFFERED
    const agent = await cell.agent({ tool_bindings: [httpTool(cell)] })
    cell.plan([malformed, { text: 'fine' }])
    return says(await cell.turn(agent, { prompt: 'Hello' }), 'fine')
  },

  async 'paused answer'(cell) {
    const { pause } = cell.profile
    if (!pause) return NOT_OFFERED
    cell.plan([{ text: 'one ', finish: pause }, { text: 'two' }])
    const turn = await cell.turn(await cell.agent(), { prompt: 'Hello' })
    return cell.calls().length === 2 ? says(turn, 'one two') : 'the answer is not continued'
  },

  async 'turn after a refusal'(cell) {
    const { refused } = cell.profile.finish
    if (refused !== 'refusal') return NOT_OFFERED
    const { say } = await session(cell, {})
    cell.plan({ text: 'I cannot do that.', finish: refused })
    await say('Something else')
    cell.plan({ text: 'fine' })
    const failure = await say('Hello')
    if (failure) return failure
    const sent = JSON.stringify(cell.calls()[0]!.body)
    if (sent.includes('Something else')) return 'the refused message is sent again'
    return sent.includes('I cannot do that.') ? 'the refusal is sent again' : null
  },

  async 'unknown finish reason'(cell) {
    if (!['custom', 'ollama'].includes(cell.profile.provider)) return NOT_OFFERED
    return toolTurn(1, { finish: 'eos' })(cell)
  },

  'comments and CRLF': noisy(['comments', 'crlf']),
  'empty data lines': noisy(['empty']),

  async 'split characters'(cell) {
    cell.plan({ chunks: ['smile \ud83d', '\ude00 now'] })
    const turn = await cell.turn(await cell.agent(), { prompt: 'Hello', stream: true })
    return (
      says(turn, 'smile 😀 now') ?? (/smile \ufffd|\\ud83d"/.test(turn.body) ? 'a delta has half a character' : null)
    )
  },

  async 'image in a message'(cell) {
    const file = { filename: `${cell.toolPath()}png`, content_type: 'image/png', content: PIXELS }
    const { id: file_id } = (await cell.key.post('/files/upload/base64', file)).body
    const content = [
      { type: 'text', text: 'See' },
      { type: 'file', file_id },
    ]
    cell.plan({ text: 'fine' })
    const failure = says(await cell.turn(await cell.agent(), { messages: [{ role: 'user', content }] }), 'fine')
    return (
      failure ?? (JSON.stringify(cell.calls()[0]!.body).includes(PIXELS) ? null : 'the image does not reach the model')
    )
  },

  async 'document alone in a message'(cell) {
    if (cell.profile.provider === 'xai' || cell.profile.provider === 'groq') return NOT_OFFERED
    const file = { filename: `${cell.toolPath()}pdf`, content_type: 'application/pdf', content: PDF }
    const { id: file_id } = (await cell.key.post('/files/upload/base64', file)).body
    const agent = await cell.agent({ media: { accept: ['application/pdf'] } })
    cell.plan({ text: 'fine' })
    const messages = [{ role: 'user', content: [{ type: 'file', file_id }] }]
    const failure = says(await cell.turn(agent, { messages }), 'fine')
    return (
      failure ?? (JSON.stringify(cell.calls()[0]!.body).includes(PDF) ? null : 'the document does not reach the model')
    )
  },

  async 'blank result of a tool'(cell) {
    const agent = await cell.agent({ tool_bindings: [httpTool(cell, {}, `blank-${cell.toolPath()}`)] })
    cell.plan([{ tool_calls: [PARIS] }, { text: 'fine' }])
    return says(await cell.turn(agent, { prompt: 'Weather?' }), 'fine')
  },

  async 'image in a result'(cell) {
    const tool = { name: 'pictures', type: 'mcp', mcp: { url: `${cell.tools.url}/mcp` } }
    const agent = await cell.agent({ tool_bindings: [{ tool }] })
    cell.plan([{ tool_calls: [{ name: '*', args: { at: 'x' } }] }, { text: 'fine' }])
    const failure = says(await cell.turn(agent, { prompt: 'Look' }), 'fine')
    if (failure) return failure
    const sent = JSON.stringify(cell.calls()[1]!.body)
    const images = sent.match(IMAGES)?.length ?? 0
    if (sent.split(PIXELS).length - 1 > images) return 'the image is text'
    return images > 0 ? null : 'the image does not reach the model'
  },

  async sampling(cell) {
    cell.plan({ text: 'fine' })
    const agent = await cell.agent({ temperature: 0.2, top_p: 0.9, max_output_tokens: 64 })
    return says(await cell.turn(agent, { prompt: 'Hello' }), 'fine')
  },

  async 'title of a session'(cell) {
    const { say, read } = await session(cell, { auto_title: true })
    cell.plan(({ body }) => ({ text: JSON.stringify(body).includes('Write a title') ? 'A fine title' : 'fine' }))
    const failure = await say('Hello')
    if (failure) return failure
    const isRefused = () => cell.calls().some(({ status }) => status >= 400)
    await eventually(async () => isRefused() || (await read()).name === 'A fine title')
    return isRefused() ? 'the call for the title is refused' : null
  },

  async 'prompt cache'(cell) {
    if (!cell.profile.marksCache) return NOT_OFFERED
    const agent = await cell.agent({ prompt_caching: { enabled: true }, instructions: 'word '.repeat(2000) })
    cell.plan({ text: 'fine' })
    await cell.turn(agent, { prompt: 'Hello' })
    const { error, body } = await cell.turn(agent, { prompt: 'And again' })
    return error ?? (body.usage.cached_tokens > 1000 ? null : `${body.usage.cached_tokens} tokens are cached`)
  },

  async overload(cell) {
    const status = cell.profile.provider === 'anthropic' ? 529 : 503
    cell.plan([{ error: { status: 429, retry_after: 0 } }, { error: { status } }, { text: 'fine' }])
    return says(await cell.turn(await cell.agent(), { prompt: 'Hello' }), 'fine')
  },

  async usage(cell) {
    cell.plan({
      text: 'fine',
      usage: { prompt_tokens: 100, completion_tokens: 30, cached_tokens: 40, reasoning_tokens: 10 },
    })
    const { error, body } = await cell.turn(await cell.agent(), { prompt: 'Hello' })
    const { uncached_input_tokens, cached_tokens, output_tokens } = body?.usage ?? {}
    return (
      error ??
      ([uncached_input_tokens, cached_tokens, output_tokens].join() === '60,40,30' ? null : JSON.stringify(body.usage))
    )
  },

  async 'usage not reported'(cell) {
    cell.plan({ text: 'fine', usage: null })
    return says(await cell.turn(await cell.agent(), { prompt: 'Hello' }), 'fine')
  },

  async 'long numbers'(cell) {
    const path = cell.toolPath()
    const parameters = { type: 'object', properties: { id: { type: 'integer' } } }
    const agent = await cell.agent({ tool_bindings: [httpTool(cell, { parameters }, `echo-${path}`)] })
    cell.plan([{ tool_calls: [{ name: '*', raw: '{"id":2512292042121000001}' }] }, { text: 'fine' }])
    const failure = says(await cell.turn(agent, { prompt: 'Hello' }), 'fine')
    if (failure) return failure
    const [received] = cell.tools.received(path)
    if (!received?.includes('2512292042121000001')) return 'the tool receives other digits'
    return JSON.stringify(cell.calls()[1]!.body).includes('2512292042121000001')
      ? null
      : 'the model receives other digits'
  },

  async list(cell) {
    const { status, body } = await cell.key.get(`/ai-providers/${cell.providerId}/models`)
    if (body.error?.code === 'MODEL_LISTING_UNSUPPORTED') return NOT_OFFERED
    return status === 200 && body.data.length > 0 ? null : JSON.stringify(body)
  },

  async check(cell) {
    cell.plan({ text: 'fine' })
    const { body } = await cell.key.post(`/ai-providers/${cell.providerId}/check`, {})
    return body.ok ? null : JSON.stringify(body.error)
  },
}
