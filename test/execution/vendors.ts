import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'

/** A request a vendor got, headers lower case, the body parsed when it is JSON. */
export type VendorRequest = { method: string; path: string; headers: IncomingMessage['headers']; body: any }

/** What a vendor answers. A string is sent as server-sent events. */
export type VendorReply = { status?: number; body: unknown; headers?: Record<string, string> }

export type Vendors = {
  url: string
  requests: VendorRequest[]
  last(): VendorRequest
  /** Answers the next request whose path holds `part`, in place of the usual answer. */
  next(part: string, reply: VendorReply): void
  close(): Promise<void>
}

/** One server that speaks the wire formats of the vendors, each below a separate path. */
export async function startVendors(): Promise<Vendors> {
  const requests: VendorRequest[] = []
  const planned: { part: string; reply: VendorReply }[] = []
  const server = createServer((request, response) => {
    const parts: Buffer[] = []
    request.on('data', part => parts.push(part))
    request.on('end', () => {
      const text = Buffer.concat(parts).toString()
      const got: VendorRequest = {
        method: request.method ?? '',
        path: request.url ?? '',
        headers: request.headers,
        body: text === '' ? null : request.headers['content-type']?.includes('json') ? JSON.parse(text) : text,
      }
      requests.push(got)
      const index = planned.findIndex(({ part }) => got.path.includes(part))
      const reply = index >= 0 ? planned.splice(index, 1)[0].reply : usual(got)
      const events = typeof reply.body === 'string' && !reply.headers?.['content-type']
      response.writeHead(reply.status ?? 200, {
        'content-type': events ? 'text/event-stream' : 'application/json',
        ...reply.headers,
      })
      response.end(typeof reply.body === 'string' ? reply.body : JSON.stringify(reply.body))
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    last: () => requests[requests.length - 1],
    next: (part, reply) => void planned.push({ part, reply }),
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}

const sse = (events: object[], names = false): string =>
  events
    .map(event => `${names ? `event: ${(event as { type: string }).type}\n` : ''}data: ${JSON.stringify(event)}\n\n`)
    .join('')

function usual({ path, body, headers }: VendorRequest): VendorReply {
  if (path.startsWith('/aws') || path.startsWith('/latest')) return aws(path, headers)
  if (path.startsWith('/anthropic')) return anthropic(path, body)
  if (path.startsWith('/google')) return google(path, body)
  if (path.includes('/converse')) return bedrock(body)
  if (path.endsWith('/foundation-models')) return { body: FOUNDATION_MODELS }
  if (path.includes('/inference-profiles')) return { body: inferenceProfiles(path) }
  if (path.endsWith('/models')) return { body: { object: 'list', data: MODELS } }
  if (path.includes('/responses')) return responses(body)
  return chat(path, body)
}

const MODELS = [
  { id: 'model-b', object: 'model', owned_by: 'maker' },
  { id: 'model-a', object: 'model', owned_by: 'maker' },
]

function chat(path: string, body: any): VendorReply {
  const usage = {
    prompt_tokens: 20,
    completion_tokens: 7,
    total_tokens: 27,
    prompt_tokens_details: { cached_tokens: 5 },
    completion_tokens_details: { reasoning_tokens: 3 },
  }
  const frame = { id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1, model: body.model }
  // Calls are answered as a whole, also where a stream is requested.
  const tool = body.tools?.[0]?.function?.name
  if (body.stream && !tool)
    return {
      body: `${sse([
        { ...frame, choices: [{ index: 0, delta: { role: 'assistant', content: 'chat ' }, finish_reason: null }] },
        { ...frame, choices: [{ index: 0, delta: { content: 'answer' }, finish_reason: null }] },
        { ...frame, choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] },
        // groq reports it in a separate field.
        { ...frame, choices: [], ...(path.startsWith('/groq') ? { x_groq: { id: 'req_1', usage } } : { usage }) },
      ])}data: [DONE]\n\n`,
    }
  const message = tool
    ? {
        role: 'assistant',
        content: null,
        tool_calls: [{ id: 'call_1', type: 'function', function: { name: tool, arguments: '{"city":"Paris"}' } }],
      }
    : { role: 'assistant', content: 'chat answer' }
  return {
    body: {
      ...frame,
      object: 'chat.completion',
      choices: [{ index: 0, message, finish_reason: tool ? 'tool_calls' : 'stop' }],
      usage,
    },
  }
}

function responses(body: any): VendorReply {
  const tool = body.tools?.[0]?.name
  const message = {
    type: 'message',
    id: 'msg_1',
    status: 'completed',
    role: 'assistant',
    content: [{ type: 'output_text', text: 'responses answer', annotations: [] }],
  }
  const call = {
    type: 'function_call',
    id: 'fc_1',
    call_id: 'call_1',
    name: tool,
    arguments: '{"city":"Paris"}',
    status: 'completed',
  }
  const done = {
    id: 'resp_1',
    object: 'response',
    created_at: 1,
    status: 'completed',
    model: body.model,
    output: [tool ? call : message],
    error: null,
    incomplete_details: null,
    usage: {
      input_tokens: 20,
      input_tokens_details: { cached_tokens: 5 },
      output_tokens: 7,
      output_tokens_details: { reasoning_tokens: 3 },
      total_tokens: 27,
    },
  }
  if (!body.stream || tool) return { body: done }
  const started = { ...done, status: 'in_progress', output: [], usage: null }
  return {
    body: sse([
      { type: 'response.created', sequence_number: 0, response: started },
      { type: 'response.output_item.added', sequence_number: 1, output_index: 0, item: { ...message, content: [] } },
      {
        type: 'response.output_text.delta',
        sequence_number: 2,
        item_id: 'msg_1',
        output_index: 0,
        content_index: 0,
        delta: 'responses ',
      },
      {
        type: 'response.output_text.delta',
        sequence_number: 3,
        item_id: 'msg_1',
        output_index: 0,
        content_index: 0,
        delta: 'answer',
      },
      { type: 'response.output_item.done', sequence_number: 4, output_index: 0, item: message },
      { type: 'response.completed', sequence_number: 5, response: done },
    ]),
  }
}

function anthropic(path: string, body: any): VendorReply {
  if (path.includes('/models')) {
    const second = path.includes('after_id')
    const id = second ? 'claude-b' : 'claude-a'
    return {
      body: {
        data: [{ type: 'model', id, display_name: id.toUpperCase() }],
        has_more: !second,
        first_id: id,
        last_id: id,
      },
    }
  }
  const usage = { input_tokens: 12, cache_creation_input_tokens: 4, cache_read_input_tokens: 5, output_tokens: 7 }
  const tool = body.tools?.[0]?.name
  const message = {
    id: 'msg_1',
    type: 'message',
    role: 'assistant',
    model: body.model,
    content: [
      tool
        ? { type: 'tool_use', id: 'toolu_1', name: tool, input: { city: 'Paris' } }
        : { type: 'text', text: 'messages answer' },
    ],
    stop_reason: tool ? 'tool_use' : 'end_turn',
    stop_sequence: null,
    usage,
  }
  if (!body.stream || tool) return { body: message }
  return {
    body: sse(
      [
        { type: 'message_start', message: { ...message, content: [], stop_reason: null } },
        { type: 'content_block_start', index: 0, content_block: { type: 'text', text: '' } },
        { type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text: 'messages ' } },
        { type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text: 'answer' } },
        { type: 'content_block_stop', index: 0 },
        { type: 'message_delta', delta: { stop_reason: 'end_turn', stop_sequence: null }, usage: { output_tokens: 7 } },
        { type: 'message_stop' },
      ],
      true,
    ),
  }
}

function google(path: string, body: any): VendorReply {
  if (body === null)
    return {
      body: path.includes('pageToken')
        ? {
            models: [
              { name: 'models/embedder', displayName: 'Embedder', supportedGenerationMethods: ['embedContent'] },
            ],
          }
        : {
            models: [
              { name: 'models/gemini-x', displayName: 'Gemini X', supportedGenerationMethods: ['generateContent'] },
            ],
            nextPageToken: 'two',
          },
    }
  const usageMetadata = {
    promptTokenCount: 20,
    cachedContentTokenCount: 5,
    candidatesTokenCount: 4,
    thoughtsTokenCount: 3,
    totalTokenCount: 27,
  }
  const tool = body.tools?.functionDeclarations?.[0]?.name ?? body.tools?.[0]?.functionDeclarations?.[0]?.name
  const part = (text: string) => (tool ? { functionCall: { name: tool, args: { city: 'Paris' } } } : { text })
  const chunk = (text: string, last: boolean) => ({
    candidates: [{ content: { parts: [part(text)], role: 'model' }, index: 0, ...(last && { finishReason: 'STOP' }) }],
    ...(last && { usageMetadata }),
  })
  return path.includes('streamGenerateContent') && !tool
    ? { body: sse([chunk('gemini ', false), chunk('answer', true)]) }
    : { body: chunk('gemini answer', true) }
}

function bedrock(body: any): VendorReply {
  const tool = body.toolConfig?.tools?.[0]?.toolSpec?.name
  const content = tool
    ? { toolUse: { toolUseId: 'tool_1', name: tool, input: { city: 'Paris' } } }
    : { text: 'converse answer' }
  return {
    body: {
      output: { message: { role: 'assistant', content: [content] } },
      stopReason: tool ? 'tool_use' : 'end_turn',
      usage: { inputTokens: 12, outputTokens: 7, totalTokens: 28, cacheReadInputTokens: 5, cacheWriteInputTokens: 4 },
      metrics: { latencyMs: 1 },
    },
  }
}

/** Where a deployment on AWS finds its keys: the container's endpoint, the token service, the instance's metadata. */
function aws(path: string, headers: IncomingMessage['headers']): VendorReply {
  const Expiration = new Date(Date.now() + 3_600_000).toISOString()
  const keys = (from: string) => ({
    AccessKeyId: `AK${from}`,
    SecretAccessKey: `secret-of-${from}`,
    Token: 'token',
    Expiration,
  })
  const text = { 'content-type': 'text/plain' }
  if (path === '/aws/container')
    return headers.authorization === 'container token' ? { body: keys('CONTAINER') } : { status: 401, body: {} }
  if (path === '/aws/sts/') {
    const { AccessKeyId, SecretAccessKey, Token } = keys('IDENTITY')
    const fields = `<AccessKeyId>${AccessKeyId}</AccessKeyId><SecretAccessKey>${SecretAccessKey}</SecretAccessKey>`
    const credentials = `<SessionToken>${Token}</SessionToken><Expiration>${Expiration}</Expiration>`
    const result = `<Credentials>${fields}${credentials}</Credentials>`
    const name = 'AssumeRoleWithWebIdentity'
    return {
      headers: { 'content-type': 'text/xml' },
      body: `<${name}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><${name}Result>${result}</${name}Result></${name}Response>`,
    }
  }
  if (path === '/latest/api/token') return { headers: text, body: 'metadata token' }
  if (headers['x-aws-ec2-metadata-token'] !== 'metadata token') return { status: 401, body: {} }
  return path.endsWith('/security-credentials/') ? { headers: text, body: 'role' } : { body: keys('INSTANCE') }
}

/** Two pages. */
const inferenceProfiles = (path: string) =>
  path.includes('nextToken=')
    ? {
        inferenceProfileSummaries: [
          {
            inferenceProfileId: 'abcd1234',
            inferenceProfileName: 'ours',
            type: 'APPLICATION',
            status: 'ACTIVE',
          },
        ],
      }
    : {
        inferenceProfileSummaries: [
          {
            inferenceProfileId: 'us.maker.model-v2:0',
            inferenceProfileName: 'US Model 2',
            type: 'SYSTEM_DEFINED',
            status: 'ACTIVE',
          },
        ],
        nextToken: 'more',
      }

const FOUNDATION_MODELS = {
  modelSummaries: [
    {
      modelArn: 'arn:aws:bedrock:us-east-1::foundation-model/maker.model-v1:0',
      modelId: 'maker.model-v1:0',
      modelName: 'Model',
      providerName: 'Maker',
      inputModalities: ['TEXT', 'IMAGE'],
      outputModalities: ['TEXT'],
      responseStreamingSupported: true,
      inferenceTypesSupported: ['ON_DEMAND'],
      modelLifecycle: { status: 'LEGACY' },
    },
    {
      modelId: 'maker.model-v2:0',
      providerName: 'Maker',
      inferenceTypesSupported: ['INFERENCE_PROFILE'],
    },
  ],
}
