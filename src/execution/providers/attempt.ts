import {
  generateText,
  InvalidToolInputError,
  isStepCount,
  jsonSchema,
  type LanguageModelUsage,
  type ModelMessage as SdkMessage,
  streamText,
  type ToolSet,
} from 'ai'
import { storableText, storableValue } from '../../core/api/storable-text.ts'
import type { Services } from '../../core/process/services.ts'
import { isRequestFault, type ModelFailure, modelFailure } from './failure.ts'
import { countModelCall } from './metrics.ts'
import type { ProviderRow } from './model.ts'
import type { AttachedFile, ModelAnswer, ModelRequest, ModelUsage, PromptMessage, TextPart } from './model-messages.ts'
import type { LanguageModelV4, ModelClient } from './models.ts'
import { fitsStrictMode, schemaInstruction } from './structured.ts'
import { vendorOptions } from './vendor-settings.ts'

export { modelFailure, modelRetryDelay } from './failure.ts'

export type ModelCallOutcome = { ok: true; answer: ModelAnswer } | { ok: false; failure: ModelFailure }

/**
 * Makes one attempt. A vendor failure or an invalid record is returned as a value; only an abort by the caller is
 * thrown.
 */
export async function attemptCall(
  services: Services,
  client: ModelClient,
  provider: ProviderRow,
  model: string,
  request: ModelRequest,
): Promise<ModelCallOutcome> {
  request.signal.throwIfAborted()
  const deadline = new AbortController()
  const abort = () => deadline.abort(request.signal.reason)
  request.signal.addEventListener('abort', abort, { once: true })
  const limit = request.timeout_ms ?? services.config.MODEL_CALL_TIMEOUT_MS
  let timedOut = false
  const timer = setTimeout(() => {
    timedOut = true
    deadline.abort(new DOMException('timed out', 'TimeoutError'))
  }, limit)
  const started = performance.now()
  let firstChunkMs: number | null = null
  const markFirstChunk = () => {
    firstChunkMs ??= performance.now() - started
  }
  const recordMetrics = (outcome: 'answered' | 'failed' | 'timed_out' | 'aborted') =>
    countModelCall(provider, model, { outcome, durationMs: performance.now() - started, firstPieceMs: firstChunkMs })
  try {
    const answer = await callSdk(client, model, request, deadline.signal, markFirstChunk)
    recordMetrics('answered')
    return { ok: true, answer: { ...answer, model, ai_provider_id: provider.id } }
  } catch (error) {
    if (request.signal.aborted) {
      recordMetrics('aborted')
      throw request.signal.reason
    }
    if (isRequestFault(error)) throw error
    recordMetrics(timedOut ? 'timed_out' : 'failed')
    const failure = modelFailure(error, {
      ai_provider_id: provider.id,
      model,
      secrets: client.secrets,
      timedOutAfter: timedOut ? limit : null,
      started: firstChunkMs !== null,
    })
    return { ok: false, failure }
  } finally {
    clearTimeout(timer)
    request.signal.removeEventListener('abort', abort)
  }
}

type RawAnswer = Omit<ModelAnswer, 'model' | 'ai_provider_id'>

async function callSdk(
  client: ModelClient,
  model: string,
  request: ModelRequest,
  signal: AbortSignal,
  markFirstChunk: () => void,
): Promise<RawAnswer> {
  const settings = callSettings(client, model, request, signal)
  if (!request.onDelta) {
    const result = await generateText(settings)
    return {
      ...rawAnswer(result.text, result.toolCalls, result.finishReason, result.rawFinishReason, result.usage),
      ...reasoningOf(result.reasoningText),
    }
  }
  const result = streamText({ ...settings, onError: () => {} })
  let text = ''
  let reasoning = ''
  const calls: SdkToolCall[] = []
  for await (const part of result.fullStream) {
    if (part.type === 'text-delta') {
      if (part.text === '') continue
      markFirstChunk()
      text += part.text
      // Chunks may split a surrogate pair, so only the whole text is made well formed.
      request.onDelta(part.text.replaceAll('\0', '\u{fffd}'))
    } else if (part.type === 'reasoning-delta') {
      markFirstChunk()
      reasoning += part.text
      request.onReasoning?.(part.text.replaceAll('\0', '\u{fffd}'))
    } else if (part.type === 'tool-call') calls.push(part)
    else if (part.type === 'tool-input-start') markFirstChunk()
    else if (part.type === 'error') throw part.error
    else if (part.type === 'abort') throw signal.reason
    else if (part.type === 'finish-step')
      return {
        ...rawAnswer(text, calls, part.finishReason, part.rawFinishReason, part.usage),
        ...reasoningOf(reasoning),
      }
  }
  throw new Error('the response ended early')
}

function callSettings(client: ModelClient, model: string, request: ModelRequest, signal: AbortSignal) {
  const { output_schema: schema, system } = request
  const byInstruction = schema !== null && !client.structuredOutputs
  const instructions = byInstruction ? [system, schemaInstruction(schema)].filter(Boolean).join('\n\n') : system
  const responseFormat =
    schema === null
      ? request.json
        ? { type: 'json' as const }
        : undefined
      : byInstruction
        ? { type: 'json' as const }
        : { type: 'json' as const, schema: schema as object, name: 'answer' }
  const typeOptions = request.provider_options?.[client.type]
  const options = {
    ...(schema !== null && !byInstruction && client.strictOption && { strictJsonSchema: fitsStrictMode(schema) }),
    ...(typeof typeOptions === 'object' && typeOptions !== null ? typeOptions : {}),
    ...vendorOptions(client.type, request.vendor_settings),
  }
  return {
    model: withCallOptions(client.model(model), { toolChoice: sdkToolChoice(request), responseFormat }),
    instructions:
      request.prompt_caching && instructions
        ? { role: 'system' as const, content: instructions, providerOptions: CACHE_MARK }
        : (instructions ?? undefined),
    messages: sdkMessages(request.messages),
    tools: request.tools.length > 0 ? sdkTools(request.tools) : undefined,
    temperature: request.temperature ?? undefined,
    maxOutputTokens: request.max_output_tokens ?? undefined,
    topP: request.top_p ?? undefined,
    seed: request.seed ?? undefined,
    stopSequences: request.stop ?? undefined,
    presencePenalty: request.vendor_settings?.presence_penalty,
    frequencyPenalty: request.vendor_settings?.frequency_penalty,
    providerOptions: Object.keys(options).length > 0 ? { [client.optionsKey]: options as never } : undefined,
    stopWhen: isStepCount(1),
    maxRetries: 0,
    abortSignal: signal,
  }
}

/** Used by Anthropic, on its own API and on bedrock; other vendors ignore it. */
const CACHE_MARK = { anthropic: { cacheControl: { type: 'ephemeral' } }, bedrock: { cachePoint: { type: 'default' } } }

/**
 * Returns the model with a tool choice and response format hidden from the SDK, which would discard an answer that
 * ignores a forced choice and parse a structured one; the turn loop handles both.
 */
function withCallOptions(
  model: LanguageModelV4,
  callOptions: Pick<Parameters<LanguageModelV4['doGenerate']>[0], 'toolChoice' | 'responseFormat'>,
): LanguageModelV4 {
  return {
    specificationVersion: 'v4',
    provider: model.provider,
    modelId: model.modelId,
    supportedUrls: model.supportedUrls,
    doGenerate: options =>
      model.doGenerate({ ...options, ...(options.tools ? callOptions : { ...callOptions, toolChoice: undefined }) }),
    doStream: options =>
      model.doStream({ ...options, ...(options.tools ? callOptions : { ...callOptions, toolChoice: undefined }) }),
  }
}

function sdkToolChoice({ tool_choice: choice }: ModelRequest) {
  if (choice === null) return { type: 'auto' as const }
  if (typeof choice === 'string') return { type: choice }
  return { type: 'tool' as const, toolName: choice.tool_name }
}

const sdkTools = (tools: ModelRequest['tools']): ToolSet =>
  Object.fromEntries(
    tools.map(tool => [tool.name, { description: tool.description, inputSchema: jsonSchema(tool.parameters) }]),
  )

/** Converts messages for the SDK and drops empty ones, which some vendors refuse. */
function sdkMessages(messages: PromptMessage[]): SdkMessage[] {
  return messages.flatMap((message): SdkMessage[] => {
    if (message.role === 'tool')
      return [
        {
          role: 'tool',
          content: message.content.map(part => ({
            type: 'tool-result',
            toolCallId: part.tool_call_id,
            toolName: part.tool_name,
            output: part.error
              ? { type: 'error-json', value: { error: part.error } as never }
              : typeof part.result === 'string'
                ? { type: 'text', value: part.result }
                : { type: 'json', value: (part.result ?? null) as never },
          })),
        },
      ]
    if (message.role === 'user') {
      const { content } = message
      return [{ role: 'user', content: typeof content === 'string' ? content : content.map(sdkPart) }]
    }
    const parts =
      typeof message.content === 'string' ? [{ type: 'text' as const, text: message.content }] : message.content
    const content = parts
      .filter(part => part.type !== 'text' || part.text !== '')
      .map(part =>
        part.type === 'text'
          ? { type: 'text' as const, text: part.text }
          : { type: 'tool-call' as const, toolCallId: part.tool_call_id, toolName: part.tool_name, input: part.args },
      )
    return content.length > 0 ? [{ role: 'assistant', content }] : []
  })
}

const sdkPart = (part: TextPart | AttachedFile) =>
  part.type === 'text'
    ? part
    : {
        type: 'file' as const,
        data: { type: 'data' as const, data: part.data_base64 },
        mediaType: part.media_type,
        filename: part.filename,
      }

type SdkToolCall = { toolCallId: string; toolName: string; input: unknown; invalid?: boolean; error?: unknown }

function rawAnswer(
  text: string,
  calls: readonly SdkToolCall[],
  finish: string,
  rawFinish: string | undefined,
  usage: LanguageModelUsage,
): RawAnswer {
  // A response without text, calls and finish reason, such as a body without choices, is a failure.
  if (text === '' && calls.length === 0 && rawFinish === undefined) throw new Error('the response is empty')
  return {
    text: storableText(text),
    tool_calls: calls.map(call => ({
      id: storableText(call.toolCallId),
      tool_name: storableText(call.toolName),
      args: storableValue(call.input),
      ...(call.invalid &&
        InvalidToolInputError.isInstance(call.error) && { args_error: 'the arguments are not valid JSON' }),
    })),
    finish_reason: FINISH.has(finish) ? (finish as ModelAnswer['finish_reason']) : 'other',
    usage: modelUsage(usage),
  }
}

const reasoningOf = (text: string | undefined) => (text ? { reasoning: storableText(text) } : {})

const FINISH = new Set(['stop', 'length', 'content-filter', 'tool-calls'])

/** Above any real count; the sum of millions of clamped counts stays a safe integer. */
const MAX_TOKENS = 1_000_000_000

/** Clamps a reported token count so that it can be summed. */
const clampTokens = (recordMetrics = 0): number => Math.min(MAX_TOKENS, Math.max(0, Math.ceil(recordMetrics)))

function modelUsage(usage: LanguageModelUsage): ModelUsage | null {
  if (usage.inputTokens === undefined && usage.outputTokens === undefined) return null
  const { cacheReadTokens = 0, cacheWriteTokens = 0, noCacheTokens } = usage.inputTokenDetails
  return {
    input_tokens: clampTokens(noCacheTokens ?? (usage.inputTokens ?? 0) - cacheReadTokens - cacheWriteTokens),
    cached_tokens: clampTokens(cacheReadTokens),
    cache_write_tokens: clampTokens(cacheWriteTokens),
    output_tokens: clampTokens(usage.outputTokens),
    reasoning_tokens: clampTokens(usage.outputTokenDetails.reasoningTokens),
  }
}
