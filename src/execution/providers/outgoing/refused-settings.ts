import type { ModelFailure } from '../failure.ts'
import type { ModelRequest, VendorNote } from '../model-messages.ts'

const REASONING_NAMES = ['reasoning', 'thinking']
const STREAM_NAMES = ['"stream"', "'stream'", '`stream`', 'to stream', 'streaming', 'stream_options', 'stream=']

/** Settings that some models refuse, and the names that vendors give them in refusals, in lower case. */
const SETTINGS = {
  temperature: ['temperature'],
  top_p: ['top_p', 'topp', 'top-p'],
  seed: ["'seed'", '"seed"', '`seed`'],
  stop: ["'stop'", '"stop"', '`stop`', 'stop_sequences', 'stopsequences'],
  presence_penalty: ['presence_penalty', 'presencepenalty'],
  frequency_penalty: ['frequency_penalty', 'frequencypenalty'],
  logit_bias: ['logit_bias'],
  logprobs: ['logprobs'],
  reasoning_effort: ['reasoning_effort', 'reasoning.effort', 'reasoningeffort'],
  verbosity: ['verbosity'],
  parallel_tool_calls: ['parallel_tool_calls', 'disable_parallel_tool_use'],
  max_output_tokens: ['max_completion_tokens'],
  // A model that refuses to leave it off may take the lowest effort.
  reasoning_none: REASONING_NAMES,
  reasoning_low: REASONING_NAMES,
  prompt_caching: ['cachepoint', 'cache_control', 'prompt caching'],
  // OpenAI streams some models for verified organizations only; Bedrock, Groq and local servers some not, or not with tools
  // or schemas.
  stream: STREAM_NAMES,
  stream_with_tools: STREAM_NAMES,
  stream_with_schema: STREAM_NAMES,
} as const

export type RefusedSetting = keyof typeof SETTINGS

/** What a refusal of a setting says besides its name. */
const REFUSALS = [
  'unsupported',
  'support',
  'not allowed',
  'not permitted',
  'unrecognized',
  'unknown',
  'invalid',
  'must be verified',
  'cannot',
  "can't",
  'deprecated',
  'only',
  'instead',
]

const REFUSED = new Set<unknown>([400, 422])

/** Whether a text is the name of a setting that models may refuse. */
export const isRefusedSetting = (name: string): name is RefusedSetting => Object.hasOwn(SETTINGS, name)

/** Returns the settings of a request that a vendor's refusal names, without the known ones. */
export function namedSettings(
  request: ModelRequest,
  { meta }: Pick<ModelFailure, 'meta'>,
  known: ReadonlySet<RefusedSetting>,
): RefusedSetting[] {
  const text = `${meta.provider_response_body ?? ''}`.toLowerCase()
  if (!REFUSED.has(meta.provider_status_code) || !REFUSALS.some(word => text.includes(word))) return []
  return (Object.keys(SETTINGS) as RefusedSetting[]).filter(
    name => !known.has(name) && settingOf(request, name) != null && SETTINGS[name].some(each => text.includes(each)),
  )
}

/** Name of the parameter that a refusal is about. In a text, the quotes would be escaped. */
const PARAM = /"param": ?"([^"]+)"/

/**
 * Whether a refusal that names a setting may quote the request: tools, schemas and texts are written by more people than
 * the owner of the provider, whose other calls would lose the setting.
 */
export function mayBeQuoted(
  { tools, output_schema, messages }: ModelRequest,
  { meta }: Pick<ModelFailure, 'meta'>,
  setting: RefusedSetting,
): boolean {
  const isNamedIn = (text: string) => SETTINGS[setting].some(name => text.toLowerCase().includes(name))
  const param = PARAM.exec(String(meta.provider_response_body ?? ''))?.[1]
  if (param !== undefined && isNamedIn(`"${param}"`)) return false
  const texts = messages.flatMap(({ content }) =>
    typeof content === 'string'
      ? content
      : content.map(part => ('text' in part ? part.text : 'args' in part ? JSON.stringify(part.args) : '')),
  )
  return isNamedIn(JSON.stringify([tools, output_schema])) || texts.some(isNamedIn)
}

const ARGUMENTS = ['temperature', 'top_p', 'seed', 'stop', 'max_output_tokens'] as const
const isArgument = (name: RefusedSetting): name is (typeof ARGUMENTS)[number] =>
  (ARGUMENTS as readonly string[]).includes(name)

const STREAM_SETTINGS = ['stream', 'stream_with_tools', 'stream_with_schema'] as const
type StreamSetting = (typeof STREAM_SETTINGS)[number]

const isStreamSetting = (name: RefusedSetting): name is StreamSetting =>
  (STREAM_SETTINGS as readonly string[]).includes(name)

const isReasoning = (name: RefusedSetting) => name === 'reasoning_none' || name === 'reasoning_low'

/** Returns the setting under which a request is streamed: a model may stream only without tools, or without a schema. */
function streamSettingOf({ stream, tools, output_schema, json }: ModelRequest): StreamSetting | null {
  if (stream === false) return null
  if (output_schema !== null || json) return 'stream_with_schema'
  return tools.length > 0 ? 'stream_with_tools' : 'stream'
}

const settingOf = (request: ModelRequest, name: RefusedSetting): unknown => {
  if (isArgument(name)) return request[name]
  if (name === 'prompt_caching') return request.prompt_caching === false ? null : true
  if (isReasoning(name)) return `reasoning_${request.reasoning}` === name ? true : null
  return isStreamSetting(name) ? (streamSettingOf(request) === name ? true : null) : request.vendor_settings?.[name]
}

/** Returns a request without settings that a model refuses, and the names of those that it had. */
export function withoutRefused(
  request: ModelRequest,
  refused: ReadonlySet<RefusedSetting>,
): { request: ModelRequest; dropped: RefusedSetting[] } {
  if (refused.size === 0) return { request, dropped: [] }
  const dropped = [...refused].filter(name => settingOf(request, name) != null)
  if (dropped.length === 0) return { request, dropped }
  const vendor_settings = { ...request.vendor_settings }
  const rest = { ...request, vendor_settings }
  for (const name of dropped)
    if (name === 'max_output_tokens') {
      // Refused by its older name only.
      vendor_settings.max_completion_tokens = rest.max_output_tokens as number
      rest.max_output_tokens = null
    } else if (isArgument(name)) rest[name] = null
    else if (isStreamSetting(name)) rest.stream = false
    else if (name === 'prompt_caching') rest.prompt_caching = false
    else if (isReasoning(name)) rest.reasoning = refused.has('reasoning_low') ? undefined : 'low'
    else delete vendor_settings[name]
  return { request: rest, dropped }
}

/** Message of the note on a setting that is left out because the model refuses it. */
export const REFUSED_NOTE = 'refused by the model'

/** Returns the notes on settings that are left out; none on the form of the response, which the answer does not show. */
export const refusedNotes = (dropped: readonly RefusedSetting[]): VendorNote[] =>
  dropped
    .filter(setting => !isStreamSetting(setting))
    .map(setting =>
      setting === 'max_output_tokens'
        ? { kind: 'setting_changed', setting, message: 'sent as max_completion_tokens' }
        : { kind: 'setting_left_out', setting, message: REFUSED_NOTE },
    )
