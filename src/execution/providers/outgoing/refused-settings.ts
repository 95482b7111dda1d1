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

/** What a refusal of a value, or of a combination with other settings, says: other calls may have another one. */
const CONDITIONS = [
  'greater than',
  'less than',
  'between',
  'positive',
  'maximum value',
  'minimum value',
  'out of range',
  'at most',
  'at least',
  'too large',
  'too long',
  ' when ',
  ' both ',
  'together',
  'same time',
  'exclusive',
  'combin',
]

/** Values that a model with the setting takes; of other settings, the schemas of requests refuse all others. */
const ORDINARY: Partial<Record<RefusedSetting, (request: ModelRequest) => boolean>> = {
  temperature: ({ temperature }) => (temperature ?? 0) <= 1,
  top_p: ({ top_p }) => top_p !== 0,
  seed: ({ seed }) => (seed ?? 0) >= 0 && (seed ?? 0) < 2 ** 31,
  stop: ({ stop }) => stop?.every(text => text.trim() !== '' && text.length < 64) === true,
  logit_bias: ({ vendor_settings }) =>
    Object.keys(vendor_settings?.logit_bias ?? {}).every(token => /^\d{1,5}$/.test(token)),
  logprobs: ({ vendor_settings }) => (vendor_settings?.top_logprobs ?? 0) <= 5,
  reasoning_effort: ({ vendor_settings }) => LEVELS.has(vendor_settings?.reasoning_effort),
  verbosity: ({ vendor_settings }) => LEVELS.has(vendor_settings?.verbosity),
  parallel_tool_calls: ({ tools }) => tools.length > 0,
}
const LEVELS = new Set<unknown>(['low', 'medium', 'high'])

/** Ends of a name in a quoted request. */
const NAME_ENDS = ['":', "':", '\\":']

/** Parts of a request that no refusal quotes as text, or that the model wrote. */
const UNQUOTED = new Set(['data_base64', 'type', 'vendor'])

/**
 * Whether a refusal that names a setting may be about this request only: about a value or a combination of settings, or a
 * quote of tools, schemas and texts. More people may write these than may change the provider, whose other calls would lose
 * the setting.
 */
export function mayBeOfRequest(
  request: ModelRequest,
  { meta }: Pick<ModelFailure, 'meta'>,
  setting: RefusedSetting,
): boolean {
  const body = String(meta.provider_response_body ?? '')
  const text = body.toLowerCase()
  if (ORDINARY[setting]?.(request) === false) return true
  if (!isStreamSetting(setting) && CONDITIONS.some(words => text.includes(words))) return true
  const names = SETTINGS[setting].map(name => name.replaceAll(/["'`]/g, ''))
  const isNamedIn = (part: string) => names.some(name => part.includes(name))
  if (isNamedIn(paramOf(body))) return false
  if (names.some(name => NAME_ENDS.some(end => text.includes(name + end)))) return true
  const { system, messages, tools, tool_choice, output_schema, stop, provider_options, vendor_settings = {} } = request
  const { logit_bias, ...values } = vendor_settings
  const parts = [system, messages, tools, tool_choice, output_schema, stop, provider_options, Object.values(values)]
  const quotable = JSON.stringify(parts, (key, value) => (UNQUOTED.has(key) ? undefined : value))
  return isNamedIn(quotable.toLowerCase())
}

/** Returns the name of the parameter that a refusal is about, in lower case; empty if it has none. */
function paramOf(body: string): string {
  try {
    return String(JSON.parse(body).error?.param ?? '').toLowerCase()
  } catch {
    return ''
  }
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
