import { bedrockRules } from './bedrock-rules.ts'
import { cacheUse } from './caching.ts'
import { eventMessage } from './event-stream.ts'
import type { Frame } from './frames.ts'
import { type Answer, parsedArgs, pieces } from './plan.ts'
import { seal, sign } from './signatures.ts'
import { type Failure, requestId, type Simulator } from './simulator.ts'

const TYPES: Record<number, string> = {
  403: 'AccessDeniedException',
  404: 'ResourceNotFoundException',
  408: 'ModelTimeoutException',
  424: 'ModelErrorException',
  429: 'ThrottlingException',
  500: 'InternalServerException',
  503: 'ServiceUnavailableException',
}
const typeOf = ({ status, type }: Failure): string => type ?? TYPES[status] ?? 'ValidationException'

const stopReason = ({ finish, calls }: Answer) => finish ?? (calls.length > 0 ? 'tool_use' : 'end_turn')

const usageOf = ({ usage, billed: { written_1h = 0 } }: Answer) =>
  usage && {
    inputTokens: usage.input,
    outputTokens: usage.output,
    totalTokens: usage.input + usage.cached + usage.written + usage.output,
    cacheReadInputTokens: usage.cached,
    cacheWriteInputTokens: usage.written,
    ...(usage.written > 0 && {
      cacheDetails: [
        { ttl: '5m', inputTokens: usage.written - written_1h },
        ...(written_1h > 0 ? [{ ttl: '1h', inputTokens: written_1h }] : []),
      ],
    }),
  }

const tierOf = ({ billed: { tier } }: Answer) => (tier ? { serviceTier: { type: tier } } : {})

const reasoningBlock = (text: string, redacted: boolean) =>
  redacted
    ? { redactedContent: Buffer.from(seal(text)).toString('base64') }
    : { reasoningText: { text, signature: sign(text) } }

function contentOf({ reasoning, redacted, text, calls }: Answer): object[] {
  return [
    ...(reasoning === null ? [] : [{ reasoningContent: reasoningBlock(reasoning, redacted) }]),
    ...(text ? [{ text }] : []),
    ...calls.map(({ id, name, args }) => ({ toolUse: { toolUseId: id, name, input: parsedArgs(args) } })),
  ]
}

/** Deltas of each block, with its start if the format has one. */
function blocksOf({ reasoning, redacted, chunks, calls }: Answer): { start?: object; deltas: object[] }[] {
  return [
    ...(reasoning === null
      ? []
      : [
          {
            deltas: redacted
              ? [{ reasoningContent: reasoningBlock(reasoning, true) }]
              : [{ reasoningContent: { text: reasoning } }, { reasoningContent: { signature: sign(reasoning) } }],
          },
        ]),
    ...(chunks.length > 0 ? [{ deltas: chunks.map(text => ({ text })) }] : []),
    ...calls.map(({ id, name, args }) => ({
      start: { toolUse: { toolUseId: id, name } },
      deltas: pieces(args).map(input => ({ toolUse: { input } })),
    })),
  ]
}

function frames(answer: Answer): Frame[] {
  const usage = usageOf(answer)
  return [
    { event: 'messageStart', data: { role: 'assistant' } },
    ...blocksOf(answer).flatMap(({ start, deltas }, contentBlockIndex) => [
      ...(start ? [{ event: 'contentBlockStart', data: { contentBlockIndex, start } }] : []),
      ...deltas.map(delta => ({ event: 'contentBlockDelta', data: { contentBlockIndex, delta } })),
      { event: 'contentBlockStop', data: { contentBlockIndex } },
    ]),
    { event: 'messageStop', data: { stopReason: stopReason(answer) } },
    ...(usage ? [{ event: 'metadata', data: { usage, metrics: { latencyMs: 1 }, ...tierOf(answer) } }] : []),
  ]
}

/** The Converse API of Bedrock, whose streams are binary messages with checksums. */
export const bedrock: Simulator = {
  name: 'bedrock',
  rules: bedrockRules,
  read(path) {
    const [, model, method] = /\/model\/([^/]+)\/(converse|converse-stream)$/.exec(path) ?? []
    return model ? { model: decodeURIComponent(model), stream: method === 'converse-stream' } : null
  },
  demand: body => ({
    tools: (body.toolConfig?.tools ?? []).flatMap(({ toolSpec }: any) =>
      toolSpec ? [{ name: toolSpec.name, schema: toolSpec.inputSchema?.json }] : [],
    ),
    forced: body.toolConfig?.toolChoice?.tool?.name ?? Boolean(body.toolConfig?.toolChoice?.any),
    schema: null,
  }),
  error: failure => ({
    status: failure.status,
    headers: { 'x-amzn-requestid': requestId(), 'x-amzn-errortype': typeOf(failure) },
    body: { message: failure.message },
  }),
  whole: answer => ({
    output: { message: { role: 'assistant', content: contentOf(answer) } },
    stopReason: stopReason(answer),
    usage: usageOf(answer) ?? { inputTokens: 0, outputTokens: 0, totalTokens: 0 },
    metrics: { latencyMs: 1 },
    ...tierOf(answer),
  }),
  frames,
  errorFrame: failure => ({
    event: `!${typeOf(failure)[0]!.toLowerCase()}${typeOf(failure).slice(1)}`,
    data: { message: failure.message },
  }),
  encode({ event = '', data }) {
    const kind: Record<string, string> = event.startsWith('!')
      ? { ':exception-type': event.slice(1), ':message-type': 'exception' }
      : { ':event-type': event, ':message-type': 'event' }
    return eventMessage({ ...kind, ':content-type': 'application/json' }, data)
  },
  callId: n => `tooluse_${String(n).padStart(22, '0')}`,
  cache(call) {
    const { system = [], toolConfig, messages } = call.body
    const parts = [...(toolConfig?.tools ?? []), ...system, ...messages.flatMap(({ content }: any) => content)]
    const blocks = parts.flatMap((content, index) =>
      content.cachePoint ? [] : [{ content, breakpoint: Boolean(parts[index + 1]?.cachePoint) }],
    )
    return cacheUse(call, blocks)
  },
  listing: {
    modelSummaries: [
      {
        modelId: 'anthropic.claude-sonnet-4-6',
        modelName: 'Claude Sonnet 4.6',
        providerName: 'Anthropic',
        inputModalities: ['TEXT', 'IMAGE'],
        outputModalities: ['TEXT'],
        responseStreamingSupported: true,
        inferenceTypesSupported: ['INFERENCE_PROFILE'],
        modelLifecycle: { status: 'ACTIVE' },
      },
    ],
  },
}
