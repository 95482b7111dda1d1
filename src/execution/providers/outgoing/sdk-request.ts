import type { LanguageModelV4CallOptions, LanguageModelV4FunctionTool } from '@ai-sdk/provider'
import type { ModelRequest, VendorNote } from '../model-messages.ts'
import type { ModelClient } from '../models.ts'
import { sentOptions } from '../options/provider-options.ts'
import { sentVendorTools } from '../options/vendor-tools.ts'
import { fitsStrictMode, JSON_INSTRUCTION, schemaInstruction, strictTools } from '../structured.ts'
import { reasoningOf, storeOption, vendorOptions } from '../vendor-settings.ts'
import { type CacheMarks, cacheMarks, markMessages } from './cache-marks.ts'
import { withoutManualThinking } from './manual-thinking.ts'
import { normaliseRequest, type Outgoing, type Target } from './normalise.ts'
import { outgoingProfile } from './profile.ts'
import { vendorPrompt } from './vendor-prompt.ts'

/** A request in the form of the vendor's package. */
type SdkRequest = Pick<Outgoing, 'restore'> & {
  options: LanguageModelV4CallOptions
  /** Renamed, changed and omitted parts. */
  notes: VendorNote[]
}

/** Converts a request to the form of the vendor's package, as the vendor accepts it. */
export function sdkRequest(client: ModelClient, request: ModelRequest, target: Target): SdkRequest {
  const { type, optionsApi } = client
  const profile = outgoingProfile(type, client.dialect, target.model)
  const { request: normalised, restore, notes } = normaliseRequest(request, profile, target)
  const strict = strictTools(normalised.tools, client.strictOption)
  const sent = { ...normalised, tools: strict.tools }
  const marks = cacheMarks(type, target.model, sent)
  const specific = sentOptions(type, optionsApi, request.provider_options)
  const hosted = sentVendorTools(optionsApi, request.vendor_tools, new Set(sent.tools.map(({ name }) => name)))
  const rules = { mediaInResults: client.mediaInResults, userAfterResults: profile.userAfterResults }
  const { messages, changing } = vendorPrompt(sent.messages, { ...rules, inputs: sent.inputs ?? null })
  if (marks) markMessages(messages, marks, changing)
  const { restriction, offered } = allowedTools(client, sent)
  const tools = [...functionTools(offered, marks), ...hosted.tools]
  const options = { ...optionsOf(client, sent, specific.options), ...restriction }
  const { instructions, responseFormat } = answerFormat(client, sent)
  const thinking = withoutManualThinking(type, target.model, {
    prompt: instructions
      ? [{ role: 'system', content: instructions, providerOptions: marks?.mark }, ...messages]
      : messages,
    ...(tools.length > 0 && { tools, toolChoice: vendorToolChoice(sent) }),
    responseFormat,
    ...settingsOf(sent),
    providerOptions: Object.keys(options).length > 0 ? { [client.optionsKey]: options as never } : undefined,
    abortSignal: sent.signal,
  })
  const { options: written, notes: thinkingNotes } = thinking
  return {
    options: written,
    notes: [...notes, ...strict.notes, ...specific.notes, ...hosted.notes, ...thinkingNotes],
    restore,
  }
}

/** Returns the settings that are arguments of every package. */
const settingsOf = ({ vendor_settings, ...request }: ModelRequest) => ({
  temperature: request.temperature ?? undefined,
  maxOutputTokens: request.max_output_tokens ?? undefined,
  topP: request.top_p ?? undefined,
  seed: request.seed ?? undefined,
  stopSequences: request.stop ?? undefined,
  reasoning: request.reasoning ?? reasoningOf(vendor_settings).reasoning,
  presencePenalty: vendor_settings?.presence_penalty,
  frequencyPenalty: vendor_settings?.frequency_penalty,
})

/** Returns the options of the vendor's package: fields of a request have precedence over its `provider_options`. */
const optionsOf = (client: ModelClient, request: ModelRequest, specific: Record<string, unknown>) => ({
  ...(request.output_schema !== null &&
    client.structuredOutputs &&
    client.strictOption && { strictJsonSchema: fitsStrictMode(request.output_schema) }),
  ...specific,
  ...vendorOptions(client.type, reasoningOf(request.vendor_settings).settings),
  ...storeOption(client.type, request),
})

/** Returns the format of the answer, and the instructions, which state it for vendors that do not take it. */
function answerFormat(
  { structuredOutputs }: Pick<ModelClient, 'structuredOutputs'>,
  { output_schema: schema, json, system }: ModelRequest,
): Pick<LanguageModelV4CallOptions, 'responseFormat'> & { instructions: string } {
  const withInstruction = (format: string | null) => [system, format].filter(Boolean).join('\n\n')
  if (schema === null)
    return json
      ? { responseFormat: { type: 'json' }, instructions: withInstruction(JSON_INSTRUCTION) }
      : { responseFormat: undefined, instructions: withInstruction(null) }
  return structuredOutputs
    ? { responseFormat: { type: 'json', schema, name: 'answer' }, instructions: withInstruction(null) }
    : { responseFormat: { type: 'json' }, instructions: withInstruction(schemaInstruction(schema)) }
}

/**
 * Returns the tools that a request offers, and the option that restricts them. Vendors without one get the allowed tools only;
 * with it all tools stay in the request, which is found in the vendor's cache.
 */
function allowedTools(
  { optionsApi }: Pick<ModelClient, 'optionsApi'>,
  { tools, tool_choice: choice }: ModelRequest,
): { restriction?: object; offered: ModelRequest['tools'] } {
  if (typeof choice !== 'object' || choice?.type !== 'allowed_tools') return { offered: tools }
  const { tool_names: toolNames, mode = 'auto' } = choice
  if (optionsApi === 'openai responses') return { restriction: { allowedTools: { toolNames, mode } }, offered: tools }
  return { offered: tools.filter(({ name }) => toolNames.includes(name)) }
}

function vendorToolChoice({ tool_choice: choice }: ModelRequest): LanguageModelV4CallOptions['toolChoice'] {
  if (choice === null) return { type: 'auto' }
  if (typeof choice === 'string') return { type: choice }
  if (choice.type === 'allowed_tools') return { type: choice.mode ?? 'auto' }
  return { type: 'tool', toolName: choice.tool_name }
}

/** Converts tools; the last one is marked for the vendor's cache. */
function functionTools(tools: ModelRequest['tools'], marks: CacheMarks | null): LanguageModelV4FunctionTool[] {
  const converted = tools.map(vendorTool)
  const last = converted.at(-1)
  if (marks && !marks.systemOnly && last) last.providerOptions = marks.mark
  return converted
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
