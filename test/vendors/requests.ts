import { sign } from '../support/vendors/signatures.ts'

/** Changes a request so that it breaks a rule. A text that it returns is the path of the request. */
type Break = (body: any, answer: any) => unknown

/** A vendor's requests: an accepted one, and for each rule a refused one. */
export type Requests = { path: string; fits: any; breaks: Record<string, Break> }

const SCHEMA = { type: 'object', properties: { city: { type: 'string' } } }
const PNG_9000 = Buffer.concat([
  Buffer.from('89504e470d0a1a0a0000000d49484452000023280000232808060000', 'hex'),
  Buffer.alloc(64),
]).toString('base64')

/** Images in the formats of chat completions, Responses and Converse. */
const chatImage = (type: string, data = PNG_9000) => ({
  role: 'user',
  content: [{ type: 'image_url', image_url: { url: `data:${type};base64,${data}` } }],
})
const responsesImage = (type: string, data = PNG_9000) => ({
  role: 'user',
  content: [{ type: 'input_image', image_url: `data:${type};base64,${data}` }],
})
const converseImage = (format: string, bytes = PNG_9000) => ({ image: { format, source: { bytes } } })
const SVG = Buffer.from('<svg xmlns="http://www.w3.org/2000/svg"/>').toString('base64')

const LONG = 'x'.repeat(70)
const image = (media_type: string, data = PNG_9000) => ({
  role: 'user',
  content: [{ type: 'image', source: { type: 'base64', media_type, data } }],
})

const anthropic: Requests = {
  path: '/anthropic/v1/messages',
  fits: {
    model: 'claude-sonnet-4-6',
    max_tokens: 4096,
    tools: [{ name: 'weather', input_schema: SCHEMA }],
    messages: [
      { role: 'user', content: 'Weather?' },
      { role: 'assistant', content: [{ type: 'tool_use', id: 'call00001', name: 'weather', input: {} }] },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'call00001', content: 'sun' }] },
    ],
  },
  breaks: {
    max_tokens: body => void delete body.max_tokens,
    'unknown field': body => void (body.messages[1].reasoning_content = 'x'),
    'no messages': body => void (body.messages = []),
    'begins with user': body => void body.messages.unshift({ role: 'assistant', content: 'Hello' }),
    'ends with user': body => void body.messages.push({ role: 'assistant', content: 'It is' }),
    'trailing space': body => {
      body.model = 'claude-sonnet-4-5'
      body.messages.push({ role: 'assistant', content: 'It is ' })
    },
    'empty text': body => void (body.messages[0].content = ''),
    'blank text': body => void body.messages[1].content.unshift({ type: 'text', text: '\n\n' }),
    'empty message': body => void (body.messages[0].content = []),
    'result missing': body => void body.messages.splice(2, 1, { role: 'user', content: 'Well?' }),
    'result unexpected': body => void (body.messages[2].content[0].tool_use_id = 'other'),
    'call id': body =>
      void (body.messages[1].content[0].id = body.messages[2].content[0].tool_use_id = 'functions.f:0'),
    'call ids unique': body => void body.messages.push(...body.messages.slice(1)),
    'tool name': body => void (body.tools[0].name = 'my tool'),
    'hosted tool name': body => void body.tools.push({ type: 'web_search_20250305', name: 'search' }),
    'hosted tool of a beta': body => void body.tools.push({ type: 'code_execution_20250825', name: 'code_execution' }),
    'domains of a search': body => {
      const lists = { allowed_domains: ['a.com'], blocked_domains: ['b.com'] }
      body.tools.push({ type: 'web_search_20250305', name: 'web_search', ...lists })
    },
    'tool names unique': body => void body.tools.push(body.tools[0]),
    'schema type': body => void (body.tools[0].input_schema = { properties: {} }),
    'schema union at the top': body => void (body.tools[0].input_schema.anyOf = [{ required: ['city'] }]),
    'schema keys': body => void (body.tools[0].input_schema.properties['$filter by'] = {}),
    'schema draft': body => void (body.tools[0].input_schema.properties.pair = { type: 'array', items: [{}, {}] }),
    temperature: body => void Object.assign(body, { model: 'claude-opus-4-7', temperature: 0 }),
    top_p: body => void Object.assign(body, { model: 'claude-opus-4-7', top_p: 0.5 }),
    'temperature and top_p': body => void Object.assign(body, { temperature: 0, top_p: 0.5 }),
    'thinking budget': body => void (body.thinking = { type: 'enabled', budget_tokens: 512 }),
    'thinking below max_tokens': body => void (body.thinking = { type: 'enabled', budget_tokens: 4096 }),
    'thinking adaptive only': body => {
      Object.assign(body, { model: 'claude-opus-4-7', thinking: { type: 'enabled', budget_tokens: 2048 } })
    },
    'thinking and forced tool': body => {
      Object.assign(body, { tool_choice: { type: 'any' }, thinking: { type: 'enabled', budget_tokens: 2048 } })
    },
    'thinking and temperature': body => {
      Object.assign(body, { temperature: 0, thinking: { type: 'enabled', budget_tokens: 2048 } })
    },
    'thinking before calls': body => void (body.thinking = { type: 'enabled', budget_tokens: 2048 }),
    'thinking while disabled': body => {
      body.thinking = { type: 'disabled' }
      body.messages[1].content.unshift({ type: 'thinking', thinking: 'because', signature: sign('because') })
    },
    'thinking signature': body => {
      body.messages[1].content.unshift({ type: 'thinking', thinking: 'other', signature: sign('because') })
    },
    'thinking data': body => void body.messages[1].content.unshift({ type: 'redacted_thinking', data: 'other' }),
    'thinking unchanged': body => {
      body.messages[1].content.unshift({ type: 'thinking', thinking: 'other', signature: sign('other') })
    },
    'image type': body => void body.messages.push(image('image/svg+xml', 'AAAA')),
    'image size': body => void body.messages.push(image('image/png')),
    'image bytes': body => void body.messages.push(image('image/png', 'A'.repeat(5_242_884))),
    'declared image type': body => void body.messages.push(image('image/webp')),
    'size of many images': body => void body.messages.push(...Array(21).fill(image('image/png'))),
    'cache breakpoints': body => {
      body.system = Array(5).fill({ type: 'text', text: 'x', cache_control: { type: 'ephemeral' } })
    },
  },
}

const chatTurn = (id = 'call00001') => [
  { role: 'user', content: 'Weather?' },
  {
    role: 'assistant',
    content: null,
    reasoning_content: undefined as string | undefined,
    tool_calls: [{ id, type: 'function', function: { name: 'weather', arguments: '{}' } }],
  },
  { role: 'tool', tool_call_id: id, content: 'sun' },
]
const offered = () => [{ type: 'function', function: { name: 'weather', parameters: structuredClone(SCHEMA) } }]
const chatBody = (model: string) => ({ model, tools: offered(), messages: chatTurn() })

const pairing: Requests['breaks'] = {
  'result missing': body => void body.messages.splice(2, 1),
  'result unexpected': body => void body.messages.splice(1, 1),
}
const strict = (schema: object) => ({
  type: 'json_schema',
  json_schema: { name: 'answer', strict: true, schema },
})
const ODD_ANSWER = {
  type: 'object',
  properties: { at: { type: 'string', format: 'uri', default: 'x' } },
  required: ['at'],
  additionalProperties: false,
}
const answer = (text: string | null = 'It is') => ({ role: 'assistant', content: text })

const openaiBreaks: Requests['breaks'] = {
  ...pairing,
  'image format': body => void body.messages.push(chatImage('image/svg+xml', SVG)),
  max_tokens: body => void (body.max_tokens = 10),
  temperature: body => void (body.temperature = 0),
  sampling: body => void (body.top_p = 0.5),
  'call id': body => void (body.messages[1].tool_calls[0].id = body.messages[2].tool_call_id = LONG),
  'tool name': body => void (body.tools[0].function.name = 'my.tool'),
  'long tool name': body => void (body.tools[0].function.name = LONG),
  'number of tools': body => void (body.tools = Array(129).fill(body.tools[0])),
  'schema type': body => void (body.tools[0].function.parameters = { properties: {} }),
  'schema union at the top': body => void (body.tools[0].function.parameters.oneOf = []),
  'array without items': body => void (body.tools[0].function.parameters.properties.list = { type: 'array' }),
  'object without properties': body => void (body.tools[0].function.parameters = { type: 'object' }),
  'strict answer schema': body => void (body.response_format = strict(ODD_ANSWER)),
  'strict schema': body => Object.assign(body.tools[0].function, { strict: true, parameters: ODD_ANSWER }),
  'image in a result': body => void (body.messages[2].content = [{ type: 'image_url', image_url: { url: 'data:' } }]),
  'empty assistant message': body => void body.messages.push(answer(null), { role: 'user', content: 'And?' }),
}

const endsWithAnswer: Requests['breaks'] = { 'ends with user': body => void body.messages.push(answer()) }
const twoAnswers: Requests['breaks'] = {
  'two answers at the end': body => void body.messages.push(answer(), answer()),
}
const twoUsers: Requests['breaks'] = { 'order of roles': body => void body.messages.unshift(body.messages[0]) }

const dialect = (name: string, model: string, breaks: Requests['breaks'], change: Break = () => {}): Requests => {
  const fits = chatBody(model)
  change(fits, null)
  return { path: `/custom/${name}/v1/chat/completions`, fits, breaks }
}

/** Adds reasoning to the call of a body. */
const reasoned: Break = body => void (body.messages[1].reasoning_content = 'because')

const thinkingBreaks: Requests['breaks'] = {
  'reasoning of calls': body => void delete body.messages[1].reasoning_content,
}

const responsesBody = (model: string) => ({
  model,
  tools: [{ type: 'function', name: 'weather', parameters: structuredClone(SCHEMA) }],
  input: [
    { role: 'user', content: [{ type: 'input_text', text: 'Weather?' }] },
    { type: 'function_call', call_id: 'call00001', name: 'weather', arguments: '{}' },
    { type: 'function_call_output', call_id: 'call00001', output: 'sun' },
  ] as any[],
})
const responsesPairing: Requests['breaks'] = {
  'result missing': body => void body.input.pop(),
  'result unexpected': body => void body.input.splice(1, 1),
}

const responses: Requests = {
  path: '/openai/v1/responses',
  fits: responsesBody('gpt-5-mini'),
  breaks: {
    ...responsesPairing,
    'image format': body => void body.input.push(responsesImage('image/svg+xml', SVG)),
    'item not stored': body => void body.input.push({ type: 'item_reference', id: 'rs_other' }),
    'reasoning alone': (body, { output }) => void body.input.push(output[0]),
    'call without reasoning': (body, { output }) => {
      body.input[1] = output.find((item: any) => item.type === 'function_call')
    },
    'encrypted reasoning': body => {
      body.input.splice(1, 0, { type: 'reasoning', id: 'rs_1', summary: [], encrypted_content: 'other' })
    },
    sampling: body => void (body.temperature = 0),
    'fewest output tokens': body => void (body.max_output_tokens = 1),
    'call id': body => void (body.input[1].call_id = body.input[2].call_id = LONG),
    'item id': body => void (body.input[1].id = 'call_1'),
    'hosted tools without reasoning': body => {
      body.tools.push({ type: 'web_search' })
      body.reasoning = { effort: 'minimal' }
    },
    container: body => void body.tools.push({ type: 'code_interpreter' }),
    'tool name': body => void (body.tools[0].name = 'my.tool'),
    'schema type': body => void (body.tools[0].parameters = { properties: {} }),
    'schema union at the top': body => void (body.tools[0].parameters.oneOf = []),
    'array without items': body => void (body.tools[0].parameters.properties.list = { type: 'array' }),
    'object without properties': body => void (body.tools[0].parameters = { type: 'object' }),
    'strict answer schema': body => {
      body.text = { format: { type: 'json_schema', name: 'answer', strict: true, schema: ODD_ANSWER } }
    },
    'strict schema': body => Object.assign(body.tools[0], { strict: true, parameters: ODD_ANSWER }),
  },
}

const geminiBody = () => ({
  tools: [{ functionDeclarations: [{ name: 'weather', parametersJsonSchema: structuredClone(SCHEMA) }] }],
  contents: [
    { role: 'user', parts: [{ text: 'Weather?' }] },
    {
      role: 'model',
      parts: [{ functionCall: { name: 'weather', args: {} }, thoughtSignature: 'skip_thought_signature_validator' }],
    },
    { role: 'user', parts: [{ functionResponse: { name: 'weather', response: {} } }] },
  ] as any[],
})
const geminiPath = '/google/v1beta/models/gemini-3-pro:generateContent'
const GEMINI_2 = geminiPath.replace('gemini-3-pro', 'gemini-2.5-pro')
const said = { role: 'model', parts: [{ text: 'Sunny' }] }

const gemini: Requests = {
  path: geminiPath,
  fits: geminiBody(),
  breaks: {
    'hosted tools beside functions': body => {
      body.tools = [...[body.tools].flat(), { googleSearch: {} }]
      return GEMINI_2
    },
    'hosted tools beside functions, combined': body => {
      body.tools = [...[body.tools].flat(), { googleSearch: {} }]
    },
    'no contents': body => void (body.contents = []),
    role: body => void (body.contents[0].role = 'assistant'),
    'empty content': body => void (body.contents[0].parts = []),
    arguments: body => void (body.contents[1].parts[0].functionCall.args = '{"city":"Par'),
    'call after user': body => void body.contents.shift(),
    'result after call': body => void body.contents.splice(1, 1),
    'number of results': body => void body.contents[2].parts.push(body.contents[2].parts[0]),
    'ends with user': body => void body.contents.push(said),
    'tool name': body => void (body.tools[0].functionDeclarations[0].name = '3d'),
    'array without items': body => {
      body.tools[0].functionDeclarations[0].parametersJsonSchema.properties.list = { type: 'array' }
    },
    'reference with siblings': body => {
      const { parametersJsonSchema: schema } = body.tools[0].functionDeclarations[0]
      Object.assign(schema, { $defs: { a: {} }, properties: { a: { $ref: '#/$defs/a', title: 'A' } } })
    },
    'thought signature': body => void delete body.contents[1].parts[0].thoughtSignature,
    'thought signature unchanged': body => void (body.contents[1].parts[0].thoughtSignature = 'other'),
    'media type': body => void body.contents[0].parts.push({ inlineData: { mimeType: 'image/svg+xml', data: 'AAAA' } }),
  },
}

const converse = (model: string) => `/model/${encodeURIComponent(model)}/converse`
const bedrock: Requests = {
  path: converse('anthropic.claude-sonnet-4-6'),
  fits: {
    toolConfig: { tools: [{ toolSpec: { name: 'weather', inputSchema: { json: SCHEMA } } }] },
    messages: [
      { role: 'user', content: [{ text: 'Weather?' }] },
      { role: 'assistant', content: [{ toolUse: { toolUseId: 'call00001', name: 'weather', input: {} } }] },
      { role: 'user', content: [{ toolResult: { toolUseId: 'call00001', content: [{ text: 'sun' }] } }] },
    ],
  },
  breaks: {
    'member pattern': body => void (body.toolConfig.tools[0].toolSpec.name = 'my.tool'),
    'member length': body => void (body.toolConfig.tools[0].toolSpec.name = LONG),
    'begins with user': body => void body.messages.shift(),
    'roles alternate': body => void body.messages.unshift(body.messages[0]),
    'ends with user': body => void body.messages.push({ role: 'assistant', content: [{ text: 'It is' }] }),
    'ends with user at other makers': body => {
      body.messages.push({ role: 'assistant', content: [{ text: 'It is' }] })
      return converse('amazon.nova-pro-v1:0')
    },
    'blank text': body => void (body.messages[0].content[0].text = ' '),
    'empty message': body => void (body.messages[0].content = []),
    'tools of the history': body => void delete body.toolConfig,
    'result missing': body => void (body.messages[2].content = [{ text: 'Well?' }]),
    'result unexpected': body => void body.messages[2].content.push(body.messages[2].content[0]),
    'empty failed result': body => {
      Object.assign(body.messages[2].content[0].toolResult, { content: [], status: 'error' })
    },
    'blank result': body => {
      body.messages[2].content[0].toolResult.content = [{ text: ' ' }]
    },
    'image format': body => void body.messages[0].content.push(converseImage('svg+xml', SVG)),
    'image size': body => void body.messages[0].content.push(converseImage('png')),
    'image bytes': body => void body.messages[0].content.push(converseImage('png', 'A'.repeat(5_242_884))),
    'size of many images': body => void body.messages[0].content.push(...Array(21).fill(converseImage('png'))),
    'document bytes': body => {
      const bytes = 'A'.repeat(6_000_004)
      body.messages[0].content.push({ document: { name: 'a', format: 'pdf', source: { bytes } } })
    },
    'document alone': body => {
      body.messages[0].content = [{ document: { name: 'a', format: 'pdf', source: { bytes: '' } } }]
    },
    temperature: body => {
      body.inferenceConfig = { temperature: 0 }
      return converse('us.anthropic.claude-opus-4-7')
    },
    top_p: body => {
      body.inferenceConfig = { topP: 0.5 }
      return converse('us.anthropic.claude-opus-4-7')
    },
    'temperature and top_p': body => void (body.inferenceConfig = { temperature: 0, topP: 0.5 }),
    'schema union at the top': body => {
      body.toolConfig.tools[0].toolSpec.inputSchema.json = { ...SCHEMA, anyOf: [] }
    },
    'schema type': body => void (body.toolConfig.tools[0].toolSpec.inputSchema.json = { properties: {} }),
    'schema keys': body => {
      body.toolConfig.tools[0].toolSpec.inputSchema.json = { type: 'object', properties: { $filter: {} } }
    },
    'thinking before calls': body => {
      body.additionalModelRequestFields = { thinking: { type: 'enabled', budget_tokens: 2048 } }
    },
    'thinking signature': body => {
      const reasoningText = { text: 'other', signature: sign('because') }
      body.messages[1].content.unshift({ reasoningContent: { reasoningText } })
    },
  },
}

const claudeBreaks: Requests['breaks'] = {
  ...endsWithAnswer,
  'blank text': body => void (body.messages[0].content = ' '),
}

/** Requests by the name of a simulator. */
export const requests: Record<string, Requests> = {
  anthropic,
  openai: { path: '/openai/v1/chat/completions', fits: chatBody('gpt-5-mini'), breaks: openaiBreaks },
  mistral: dialect('mistral', 'mistral-large-latest', {
    ...endsWithAnswer,
    'result missing': pairing['result missing']!,
    'order of roles': body => void body.messages.push({ role: 'user', content: 'And?' }),
    'call id': body => void (body.messages[1].tool_calls[0].id = body.messages[2].tool_call_id = 'call_1'),
    'empty assistant message': body => void body.messages.push(answer(''), { role: 'user', content: 'And?' }),
    'unknown field': body => void (body.stream_options = {}),
  }),
  deepseek: dialect(
    'deepseek',
    'deepseek-reasoner',
    {
      ...pairing,
      ...thinkingBreaks,
      'reasoning of texts': body => void body.messages.push(answer(), { role: 'user', content: 'And?' }),
      'reasoning unchanged': body => void (body.messages[1].reasoning_content = 'other'),
      'answer schema': body => void (body.response_format = strict(SCHEMA)),
    },
    reasoned,
  ),
  kimi: dialect(
    'kimi',
    'kimi-k2.6',
    {
      ...pairing,
      ...thinkingBreaks,
      temperature: body => void (body.temperature = 0),
      'empty reasoning of calls': body => void (body.messages[1].reasoning_content = ''),
      'empty assistant message': body => void body.messages.push(answer(''), { role: 'user', content: 'And?' }),
    },
    reasoned,
  ),
  openrouter: dialect('openrouter', 'anthropic/claude-sonnet-4.6', { ...pairing, ...claudeBreaks }),
  litellm: dialect('litellm', 'gpt-5-mini', openaiBreaks),
  groq: {
    path: '/groq/v1/chat/completions',
    fits: chatBody('openai/gpt-oss-120b'),
    breaks: {
      'image pixels': body => void body.messages.push(chatImage('image/png')),
      'bytes of images': body => void body.messages.push(chatImage('image/png', 'A'.repeat(4_000_004))),
      ...pairing,
      'unknown field of a message': reasoned,
      'tool name': openaiBreaks['tool name']!,
      'strict answer schema': openaiBreaks['strict answer schema']!,
    },
  },
  vllm: dialect('vllm', 'mistralai/Devstral-Small-2-24B-Instruct-2512', {
    ...twoUsers,
    'call id': openaiBreaks['call id']!,
  }),
  llamacpp: dialect('llamacpp', 'devstral-small-2', { ...twoAnswers, ...twoUsers, ...endsWithAnswer }),
  lmstudio: dialect('lmstudio', 'qwen3-8b', {
    'image pixels': body => void body.messages.push(chatImage('image/png')),
    'answer format': body => void (body.response_format = { type: 'json_object' }),
    'forced tool': body => void (body.tool_choice = { type: 'function', function: { name: 'weather' } }),
  }),
  ollama: dialect('ollama', 'qwen3:8b', twoAnswers),
  'openai responses': responses,
  xai: {
    path: '/xai/v1/responses',
    fits: responsesBody('grok-4'),
    breaks: {
      'image format': body => void body.input.push(responsesImage('image/webp', SVG)),
      ...responsesPairing,
      sampling: body => void (body.presence_penalty = 1),
    },
  },
  gemini,
  vertex: { ...gemini, path: '/v1/publishers/google/models/gemini-3-pro:generateContent' },
  bedrock,
}
