import type {
  LanguageModelV4,
  LanguageModelV4CallOptions,
  LanguageModelV4Content,
  LanguageModelV4FilePart,
  LanguageModelV4FinishReason,
  LanguageModelV4FunctionTool,
  LanguageModelV4Message,
  LanguageModelV4Prompt,
  LanguageModelV4StreamPart,
  LanguageModelV4ToolCall,
  LanguageModelV4ToolResultPart,
  LanguageModelV4Usage,
  SharedV4ProviderMetadata,
  SharedV4Warning,
} from '@ai-sdk/provider'
import { storableText, storableValue, truncateChars } from '../../core/api/storable-text.ts'
import type { Services } from '../../core/process/services.ts'
import { annotationsOf } from './annotations.ts'
import { BodyReader } from './body-facts.ts'
import { estimatedUsage } from './estimated-usage.ts'
import { ResponseWatch, UnstreamedError } from './event-stream.ts'
import { parseModelArguments } from './exact-arguments.ts'
import { AnswerLimitError, type ModelFailure, modelFailure, StreamFailure, type TimeLimit } from './failure.ts'
import { countModelCall } from './metrics.ts'
import type { ModelInput, ProviderRow } from './model.ts'
import type {
  AttachedFile,
  ModelAnswer,
  ModelRequest,
  ModelUsage,
  PromptMessage,
  TextPart,
  ToolResultPart,
  VendorNote,
} from './model-messages.ts'
import type { ModelClient } from './models.ts'
import { sentOptions } from './options/provider-options.ts'
import { type SentVendorTool, sentVendorTools } from './options/vendor-tools.ts'
import { type CacheMarks, cacheMarks, markMessages } from './outgoing/cache-marks.ts'
import { fitMedia } from './outgoing/fit-media.ts'
import { withoutManualThinking } from './outgoing/manual-thinking.ts'
import { mediaLimits } from './outgoing/media-limits.ts'
import { ACKNOWLEDGEMENT } from './outgoing/messages.ts'
import { normaliseRequest } from './outgoing/normalise.ts'
import { type OutgoingProfile, outgoingProfile } from './outgoing/profile.ts'
import { contentWithMedia, mediaNote } from './outgoing/result-media.ts'
import { type Reported, reportedUsage, servedBy } from './reported-usage.ts'
import { fitsStrictMode, JSON_INSTRUCTION, schemaInstruction, strictTools } from './structured.ts'
import { answerText, ContentReader, isKept, MessageBounds, vendorParts } from './vendor-parts.ts'
import { reasoningOf, storeOption, vendorOptions } from './vendor-settings.ts'
import { warningNotes } from './warnings.ts'
import { WholeCharacters } from './whole-characters.ts'

export { modelFailure, modelRetryDelay } from './failure.ts'

export type ModelCallOutcome =
  | { ok: true; answer: ModelAnswer }
  | {
      ok: false
      failure: ModelFailure
      /** Tokens of an answer that began and failed, which may be billed; absent if none began. */
      used?: ModelUsage
    }

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
  const { MODEL_CALL_TIMEOUT_MS, MODEL_STREAM_IDLE_MS } = services.config
  const ended: { by: TimeLimit | null } = { by: null }
  const stop = (limit: TimeLimit) => {
    ended.by ??= limit
    deadline.abort(new DOMException('timed out', 'TimeoutError'))
  }
  const total: TimeLimit = { kind: 'total', ms: request.timeout_ms ?? MODEL_CALL_TIMEOUT_MS }
  const idle: TimeLimit = { kind: 'idle', ms: MODEL_STREAM_IDLE_MS }
  const timer = setTimeout(() => stop(total), total.ms)
  const started = performance.now()
  const progress: Progress = { characters: 0, usage: null }
  let firstChunkMs: number | null = null
  const markFirstChunk = () => {
    firstChunkMs ??= performance.now() - started
  }
  const recordMetrics = (outcome: 'answered' | 'failed' | 'timed_out' | 'aborted') =>
    countModelCall(provider, model, { outcome, durationMs: performance.now() - started, firstPieceMs: firstChunkMs })
  try {
    const answer = await callSdk(services, client, { provider, model }, request, {
      signal: deadline.signal,
      markFirstChunk,
      progress,
      idle: { ms: idle.ms, onIdle: () => stop(idle) },
    })
    recordMetrics('answered')
    return { ok: true, answer: { ...answer, model, ai_provider_id: provider.id } }
  } catch (error) {
    if (request.signal.aborted) {
      recordMetrics('aborted')
      throw request.signal.reason
    }
    recordMetrics(ended.by ? 'timed_out' : 'failed')
    const failure = modelFailure(error, {
      ai_provider_id: provider.id,
      model,
      secrets: client.secrets,
      exceeded: ended.by,
      isShown: request.onDelta !== undefined && firstChunkMs !== null,
    })
    const used = progress.usage ?? (progress.characters > 0 ? estimatedUsage(request, progress.characters) : null)
    return { ok: false, failure, ...(used && { used }) }
  } finally {
    clearTimeout(timer)
    request.signal.removeEventListener('abort', abort)
  }
}

/**
 * Limits of an answer. A piece takes 20 microseconds of processor time, and up to ten times that when it arrives by itself.
 */
const MAX_CALLS = 256
const MAX_ARGUMENT_PIECES = 50_000
const MAX_PIECES = 250_000
/** Characters of a streamed answer: several times what any model writes. An answer that pauses has ten times as many. */
const MAX_CHARACTERS = 4 * 1024 * 1024

/** @throws AnswerLimitError for an answer with more parts than allowed */
function limitAnswer(count: number, max: number, what: string): void {
  if (count > max) throw new AnswerLimitError(`the answer has more than ${max} ${what}`)
}

type RawAnswer = Omit<ModelAnswer, 'model' | 'ai_provider_id'>

/** What has arrived of an answer: the characters, and the tokens if the vendor reported them. */
type Progress = { characters: number; usage: ModelUsage | null }

type CallControl = {
  signal: AbortSignal
  markFirstChunk: () => void
  progress: Progress
  idle: { ms: number; onIdle: () => void }
}

/** Makes the request in the form that the vendor accepts, and returns the answer with the names of the request. */
async function callSdk(
  services: Services,
  client: ModelClient,
  { provider, model }: { provider: Pick<ProviderRow, 'id' | 'project_id'>; model: string },
  request: ModelRequest,
  { signal, markFirstChunk, progress, idle }: CallControl,
): Promise<RawAnswer> {
  const target = { ai_provider_id: provider.id, model }
  const profile = outgoingProfile(client.type, client.dialect, model)
  const limits = mediaLimits(client.type, client.dialect, model)
  const media = await fitMedia(request, limits, { services, project: provider.project_id, signal })
  const { request: normalised, restore, notes } = normaliseRequest(media.request, profile, target)
  const strict = strictTools(normalised.tools, client.strictOption)
  const sent = { ...normalised, tools: strict.tools }
  const marks = cacheMarks(client.type, model, sent)
  const vendor = client.model(model)
  const { options: vendorSpecific, notes: optionNotes } = sentOptions(
    client.type,
    client.optionsApi,
    request.provider_options,
  )
  const hosted = sentVendorTools(client.optionsApi, request.vendor_tools, new Set(sent.tools.map(({ name }) => name)))
  const { options, notes: thinkingNotes } = withoutManualThinking(
    client.type,
    model,
    callOptions(client, sent, { ...profile, marks, vendorSpecific, hosted: hosted.tools }, signal),
  )
  const isStreamed = request.stream !== false
  const watch = new ResponseWatch({ isStreamed, idle, body: BodyReader.of(client.type) })
  const reports = (end: ReportedEnd): Reported => ({
    type: client.type,
    model,
    usage: end.usage,
    metadata: end.providerMetadata,
    content: end.content,
    modelId: end.modelId,
    facts: watch.body?.facts ?? null,
  })
  const answer = isStreamed
    ? await readStream(vendor, options, request, { watch, reports, markFirstChunk, progress }).catch(error => {
        // Some servers answer a request for a stream with a whole answer.
        if (!(error instanceof UnstreamedError)) throw error
        return readAnswer(vendor, options, request, { watch, reports })
      })
    : await readAnswer(vendor, options, request, { watch, reports })
  const sentNotes = [...media.notes, ...notes, ...strict.notes, ...optionNotes, ...hosted.notes, ...thinkingNotes]
  const all = [...sentNotes, ...(answer.notes ?? [])]
  return { ...answer, tool_calls: restore(answer.tool_calls), ...(all.length > 0 && { notes: all }) }
}

async function readAnswer(
  vendor: LanguageModelV4,
  options: LanguageModelV4CallOptions,
  { onDelta, onReasoning }: Shown,
  { watch, reports }: Reading,
): Promise<RawAnswer> {
  const { content, warnings, response, ...end } = await watch.run(() => vendor.doGenerate(options))
  limitAnswer(content.filter(({ type }) => type === 'tool-call').length, MAX_CALLS, 'tool calls')
  const answer = rawAnswer(content, end, warnings, reports({ ...end, content, modelId: response?.modelId }))
  if (answer.reasoning) onReasoning?.(answer.reasoning)
  if (answer.text !== '') onDelta?.(answer.text)
  return answer
}

type Shown = Pick<ModelRequest, 'onDelta' | 'onReasoning'>
/** What the end of an answer reports. */
type ReportedEnd = Pick<AnswerEnd, 'usage' | 'providerMetadata'> & {
  content: readonly LanguageModelV4Content[]
  modelId?: string
}
type Reading = { watch: ResponseWatch; reports: (end: ReportedEnd) => Reported }
type StreamControl = Reading & Pick<CallControl, 'markFirstChunk' | 'progress'>

async function readStream(
  vendor: LanguageModelV4,
  options: LanguageModelV4CallOptions,
  { onDelta, onReasoning }: Shown,
  control: StreamControl,
): Promise<RawAnswer> {
  const { stream, response } = await control.watch.run(() => vendor.doStream(options))
  const shown = { text: new WholeCharacters(onDelta), reasoning: new WholeCharacters(onReasoning) }
  return readParts(stream, shown, control).catch(error => {
    throw new StreamFailure(error, response?.headers)
  })
}

/** @throws what the vendor sends in place of the rest of the answer */
async function readParts(
  stream: ReadableStream<LanguageModelV4StreamPart>,
  shown: Record<'text' | 'reasoning', WholeCharacters>,
  { watch, reports, markFirstChunk, progress }: StreamControl,
): Promise<RawAnswer> {
  const content = new ContentReader()
  const bounds = new MessageBounds()
  let [pieces, argumentPieces, started, calls] = [0, 0, 0, 0]
  let hasText = false
  let warnings: readonly SharedV4Warning[] = []
  let modelId: string | undefined
  for await (const part of stream) {
    if ('delta' in part) {
      limitAnswer(++pieces, MAX_PIECES, 'pieces')
      progress.characters += part.delta.length
      limitAnswer(progress.characters, MAX_CHARACTERS, 'characters')
    }
    content.read(part)
    if (part.type === 'text-delta') {
      if (part.delta === '') continue
      markFirstChunk()
      shown.text.add(bounds.separator(hasText) + part.delta)
      hasText = true
    } else if (part.type === 'text-start') {
      bounds.begin(part)
    } else if (part.type === 'stream-start') {
      warnings = part.warnings
    } else if (part.type === 'response-metadata') {
      modelId = part.modelId ?? modelId
    } else if (part.type === 'reasoning-delta') {
      markFirstChunk()
      shown.reasoning.add(part.delta)
    } else if (part.type === 'tool-input-delta') {
      limitAnswer(++argumentPieces, MAX_ARGUMENT_PIECES, 'pieces of arguments')
    } else if (part.type === 'tool-call') {
      limitAnswer(++calls, MAX_CALLS, 'tool calls')
    } else if (part.type === 'tool-input-start') {
      markFirstChunk()
      limitAnswer(++started, MAX_CALLS, 'tool calls')
    } else if (part.type === 'error') throw part.error
    else if (part.type === 'finish') {
      // The packages end a stream that breaks off as if it were complete, but without a reason.
      const parts = content.parts()
      const reported = reports({ ...part, content: parts, modelId })
      progress.usage = reportedUsage(reported)
      if (part.finishReason.raw === undefined && !watch.hasEnded) break
      for (const each of Object.values(shown)) each.end()
      return rawAnswer(parts, part, warnings, reported)
    }
  }
  throw new Error('the stream broke off')
}

function callOptions(
  client: ModelClient,
  request: ModelRequest,
  {
    userAfterResults,
    marks,
    vendorSpecific,
    hosted,
  }: OutgoingProfile & { marks: CacheMarks | null; vendorSpecific: Record<string, unknown>; hosted: SentVendorTool[] },
  signal: AbortSignal,
): LanguageModelV4CallOptions {
  const { output_schema: schema, system } = request
  const byInstruction = schema !== null && !client.structuredOutputs
  const format = byInstruction ? schemaInstruction(schema) : schema === null && request.json ? JSON_INSTRUCTION : null
  const instructions = [system, format].filter(Boolean).join('\n\n')
  const responseFormat =
    schema === null
      ? request.json
        ? { type: 'json' as const }
        : undefined
      : byInstruction
        ? { type: 'json' as const }
        : { type: 'json' as const, schema: schema as object, name: 'answer' }
  const { reasoning, settings: otherSettings } = reasoningOf(request.vendor_settings)
  const options = {
    ...(schema !== null && !byInstruction && client.strictOption && { strictJsonSchema: fitsStrictMode(schema) }),
    ...vendorSpecific,
    ...vendorOptions(client.type, otherSettings),
    ...storeOption(client.type, request),
  }
  const { messages, changing } = vendorPrompt(request.messages, {
    mediaInResults: client.mediaInResults,
    userAfterResults,
    inputs: request.inputs ?? null,
  })
  if (marks) markMessages(messages, marks, changing)
  const { allowed, offered } = allowedTools(client, request)
  if (allowed) Object.assign(options, allowed)
  const tools = offered.map(vendorTool)
  const lastTool = tools.at(-1)
  if (marks && !marks.systemOnly && lastTool) lastTool.providerOptions = marks.mark
  return {
    prompt: [
      ...(instructions
        ? [{ role: 'system' as const, content: instructions, ...(marks && { providerOptions: marks.mark }) }]
        : []),
      ...messages,
    ],
    ...(tools.length + hosted.length > 0 && { tools: [...tools, ...hosted], toolChoice: vendorToolChoice(request) }),
    responseFormat,
    temperature: request.temperature ?? undefined,
    maxOutputTokens: request.max_output_tokens ?? undefined,
    topP: request.top_p ?? undefined,
    seed: request.seed ?? undefined,
    stopSequences: request.stop ?? undefined,
    reasoning: request.reasoning ?? reasoning,
    presencePenalty: request.vendor_settings?.presence_penalty,
    frequencyPenalty: request.vendor_settings?.frequency_penalty,
    providerOptions: Object.keys(options).length > 0 ? { [client.optionsKey]: options as never } : undefined,
    abortSignal: signal,
  }
}

/**
 * Returns the tools that a request offers, and the option that restricts them. Vendors without one get the allowed tools only;
 * with it all tools stay in the request, which is found in the vendor's cache.
 */
function allowedTools(
  { optionsApi }: Pick<ModelClient, 'optionsApi'>,
  { tools, tool_choice: choice }: ModelRequest,
): { allowed?: object; offered: ModelRequest['tools'] } {
  if (typeof choice !== 'object' || choice?.type !== 'allowed_tools') return { offered: tools }
  const { tool_names: toolNames, mode = 'auto' } = choice
  if (optionsApi === 'openai responses') return { allowed: { allowedTools: { toolNames, mode } }, offered: tools }
  return { offered: tools.filter(({ name }) => toolNames.includes(name)) }
}

function vendorToolChoice({ tool_choice: choice }: ModelRequest): LanguageModelV4CallOptions['toolChoice'] {
  if (choice === null) return { type: 'auto' }
  if (typeof choice === 'string') return { type: choice }
  if (choice.type === 'allowed_tools') return { type: choice.mode ?? 'auto' }
  return { type: 'tool', toolName: choice.tool_name }
}

const vendorTool = ({
  name,
  description,
  parameters,
  strict,
}: ModelRequest['tools'][number]): LanguageModelV4FunctionTool => ({
  type: 'function',
  name,
  description,
  inputSchema: parameters,
  ...(strict && { strict }),
})

/**
 * Converts messages for the vendor's package. Consecutive results are joined, which some vendors require. `changing` is the
 * index of the first message that changes with each turn.
 */
function vendorPrompt(
  messages: readonly PromptMessage[],
  rules: MediaRules,
): { messages: LanguageModelV4Prompt; changing: number | null } {
  const prompt: LanguageModelV4Message[] = []
  let changing: number | null = null
  let media: LanguageModelV4FilePart[] = []
  for (const message of messages) {
    if (message.role === 'tool') {
      const content = message.content.map(part => toolResult(part, rules, media))
      const last = prompt.at(-1)
      if (last?.role === 'tool') last.content.push(...content)
      else prompt.push({ role: 'tool', content })
      continue
    }
    prompt.push(...mediaMessages(media, rules))
    media = []
    if (message.role === 'user') {
      const { content } = message
      if (message.changes) changing ??= prompt.length
      prompt.push({ role: 'user', content: typeof content === 'string' ? [textPart(content)] : userParts(content) })
      continue
    }
    prompt.push({ role: 'assistant', content: assistantParts(message) })
  }
  return { messages: [...prompt, ...mediaMessages(media, rules)], changing }
}

function mediaMessages(media: LanguageModelV4FilePart[], { userAfterResults }: MediaRules): LanguageModelV4Message[] {
  if (media.length === 0) return []
  const message = { role: 'user' as const, content: media }
  return userAfterResults ? [message] : [{ role: 'assistant', content: [textPart(ACKNOWLEDGEMENT)] }, message]
}

/** Where media of results are sent: in the results, or after them; and the inputs of the model, null if unknown. */
type MediaRules = Pick<ModelClient, 'mediaInResults'> &
  Pick<OutgoingProfile, 'userAfterResults'> & { inputs: ReadonlySet<ModelInput> | null }

/** Converts a result. Media that the vendor does not take in results are added to `media`, which follows them. */
function toolResult(
  { tool_call_id: toolCallId, tool_name: toolName, result, error }: ToolResultPart,
  { mediaInResults, inputs }: MediaRules,
  media: LanguageModelV4FilePart[],
): LanguageModelV4ToolResultPart {
  const about = { type: 'tool-result' as const, toolCallId, toolName }
  if (error) return { ...about, output: { type: 'error-json', value: { error } as never } }
  if (typeof result === 'string') return { ...about, output: { type: 'text', value: result } }
  const items = contentWithMedia(result)
  if (!items) return { ...about, output: { type: 'json', value: (result ?? null) as never } }
  const value = items.filter(hasContent).map(item => {
    if (item.type === 'text') return item
    const isTaken = inputs === null || inputs.has(inputOf(item.media_type))
    if (!isTaken) return textPart(mediaNote(item.media_type, item.data_base64))
    const file = filePart(item.media_type, item.data_base64)
    if (mediaInResults) return file
    media.push(file)
    return textPart(`[${item.media_type} in the next message]`)
  })
  const texts = value.filter(each => each.type === 'text')
  return texts.length === value.length
    ? { ...about, output: { type: 'text', value: texts.map(({ text }) => text).join('\n') } }
    : { ...about, output: { type: 'content', value } }
}

/** Vendors refuse blank blocks of a result. */
const hasContent = (item: { type: string; text?: string }, _: number, items: readonly object[]): boolean =>
  items.length === 1 || item.text === undefined || item.text.trim() !== ''

const inputOf = (mediaType: string): ModelInput =>
  mediaType === 'application/pdf' ? 'pdf' : mediaType.startsWith('audio/') ? 'audio' : 'image'

const filePart = (mediaType: string, data: string, filename?: string) => ({
  type: 'file' as const,
  data: { type: 'data' as const, data },
  mediaType,
  filename,
})

function assistantParts({ content, vendor }: Extract<PromptMessage, { role: 'assistant' }>): AssistantPart[] {
  const parts = typeof content === 'string' ? [textPart(content)] : content
  const calls = parts
    .filter(part => part.type === 'tool_call')
    .map(part => ({
      type: 'tool-call' as const,
      toolCallId: part.tool_call_id,
      toolName: part.tool_name,
      input: part.args,
    }))
  if (!vendor) return [...parts.filter(part => part.type === 'text'), ...calls]
  return vendor.parts.flatMap((part): AssistantPart[] => {
    const providerOptions = part.metadata as LanguageModelV4CallOptions['providerOptions']
    if (part.type === 'reasoning') return [{ type: 'reasoning', text: part.text, providerOptions }]
    if (part.type === 'text') return part.text.trim() === '' ? [] : [{ ...textPart(part.text), providerOptions }]
    if (part.type === 'tool_call') return calls[part.position] ? [{ ...calls[part.position], providerOptions }] : []
    const about = { toolCallId: part.id, toolName: part.name, providerOptions }
    if (part.type === 'vendor_call') return [{ type: 'tool-call', ...about, input: part.input, providerExecuted: true }]
    const output = { type: part.is_error ? 'error-json' : 'json', value: part.result } as ToolOutput
    return [{ type: 'tool-result', ...about, output }]
  })
}

type ToolOutput = LanguageModelV4ToolResultPart['output']
type AssistantPart = Extract<LanguageModelV4Message, { role: 'assistant' }>['content'][number]

const textPart = (text: string) => ({ type: 'text' as const, text })

const userParts = (parts: readonly (TextPart | AttachedFile)[]) =>
  parts.map(part =>
    part.type === 'text' ? textPart(part.text) : filePart(part.media_type, part.data_base64, part.filename),
  )

type AnswerEnd = {
  finishReason: LanguageModelV4FinishReason
  usage: LanguageModelV4Usage
  providerMetadata?: SharedV4ProviderMetadata
}

function rawAnswer(
  content: readonly LanguageModelV4Content[],
  { finishReason, providerMetadata }: AnswerEnd,
  warnings: readonly SharedV4Warning[],
  reported: Reported,
): RawAnswer {
  const notes = [...warningNotes(warnings), ...(finishReason.raw === 'refusal' ? [refusalNote(providerMetadata)] : [])]
  const text = answerText(content)
  const reasoning = content.map(part => (part.type === 'reasoning' ? part.text : '')).join('')
  const calls = content.filter(part => part.type === 'tool-call').filter(call => !call.providerExecuted)
  const paused = finishReason.raw === 'pause_turn' && calls.length === 0
  // A response without text, calls and finish reason, such as a body without choices, is a failure.
  const isEmpty = text === '' && calls.length === 0
  if (isEmpty && finishReason.raw === undefined) throw new Error('the response is empty')
  const vendor_parts = vendorParts(content)
  const annotations = annotationsOf(content)
  return {
    text: storableText(text),
    ...((paused || isKept(vendor_parts)) && { vendor_parts }),
    ...(paused && { paused }),
    ...(isEmpty && { vendor_reason: finishReason.raw }),
    tool_calls: calls.map(toolCall),
    finish_reason: FINISH.has(finishReason.unified) ? (finishReason.unified as ModelAnswer['finish_reason']) : 'other',
    usage: reportedUsage(reported),
    ...servedBy(reported),
    ...(notes.length > 0 && { notes }),
    ...(annotations.length > 0 && { annotations }),
    ...(reasoning && { reasoning: storableText(reasoning) }),
  }
}

/** Returns the note of an answer that ends with a refusal, with the details that the vendor gives. */
function refusalNote(metadata: SharedV4ProviderMetadata | undefined): VendorNote {
  const details = (metadata?.anthropic?.stopDetails ?? {}) as { category?: unknown; explanation?: unknown }
  const text = (value: unknown) => (typeof value === 'string' ? storableText(truncateChars(value, 500)) : null)
  return {
    kind: 'refused',
    category: text(details.category),
    message: text(details.explanation) ?? 'the vendor refused to answer',
  }
}

function toolCall({ toolCallId, toolName, input }: LanguageModelV4ToolCall): ModelAnswer['tool_calls'][number] {
  const call = { id: storableText(toolCallId), tool_name: storableText(toolName) }
  try {
    return { ...call, args: storableValue(parseModelArguments(input)) }
  } catch {
    return { ...call, args: storableText(input), args_error: 'the arguments are not valid JSON' }
  }
}

const FINISH = new Set(['stop', 'length', 'content-filter', 'tool-calls'])
