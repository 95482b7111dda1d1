import type { ProviderType } from './model.ts'
import type { ModelRequest, VendorNote, VendorSettings } from './model-messages.ts'

/** Options of a provider type by setting: the name of its option in the SDK. */
type OptionNames = Partial<Record<keyof VendorSettings, string>>

const openai: OptionNames = {
  logit_bias: 'logitBias',
  reasoning_effort: 'reasoningEffort',
  verbosity: 'textVerbosity',
  service_tier: 'serviceTier',
  prompt_cache_key: 'promptCacheKey',
  parallel_tool_calls: 'parallelToolCalls',
  max_completion_tokens: 'maxCompletionTokens',
}

/** Endpoints of this format receive further fields unchanged. */
const compatible: OptionNames = {
  logit_bias: 'logit_bias',
  logprobs: 'logprobs',
  top_logprobs: 'top_logprobs',
  reasoning_effort: 'reasoningEffort',
  verbosity: 'textVerbosity',
  service_tier: 'service_tier',
  prompt_cache_key: 'prompt_cache_key',
  parallel_tool_calls: 'parallel_tool_calls',
  max_completion_tokens: 'max_completion_tokens',
}

const optionNames: Partial<Record<ProviderType, OptionNames>> = {
  openai,
  azure: openai,
  xai: { reasoning_effort: 'reasoningEffort' },
  groq: {
    reasoning_effort: 'reasoningEffort',
    service_tier: 'serviceTier',
    parallel_tool_calls: 'parallelToolCalls',
  },
  ollama: compatible,
  gateway: compatible,
  custom: compatible,
}

const EFFORTS = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'] as const
type Effort = (typeof EFFORTS)[number]

/**
 * Returns the effort of reasoning as the argument that each package translates for its models, and the other settings.
 * Other efforts remain an option.
 */
export function reasoningOf(settings: VendorSettings = {}): {
  reasoning: Effort | undefined
  settings: VendorSettings
} {
  const { reasoning_effort, ...others } = settings
  const reasoning = EFFORTS.find(effort => effort === reasoning_effort)
  return { reasoning, settings: reasoning ? others : settings }
}

/** Types whose vendors store answers. */
const STORING = new Set<ProviderType>(['openai', 'azure', 'xai'])

/** Returns the SDK option of whether the vendor may store an answer. */
export const storeOption = (type: ProviderType, { store }: Pick<ModelRequest, 'store'>): { store?: boolean } =>
  store !== undefined && STORING.has(type) ? { store } : {}

/** Returns the SDK options of settings that a provider type supports; penalties are arguments of the call. */
export function vendorOptions(type: ProviderType, settings: VendorSettings = {}): Record<string, unknown> {
  const names = optionNames[type] ?? {}
  const options = Object.entries(settings).flatMap(([name, value]) => {
    const option = names[name as keyof VendorSettings]
    return option === undefined || value === undefined ? [] : [[option, value] as const]
  })
  const { logprobs, top_logprobs } = settings
  const isOpenAi = names === openai && logprobs
  // The package takes no 0, and true for twenty.
  return { ...Object.fromEntries(options), ...(isOpenAi && { logprobs: Math.max(1, top_logprobs ?? 1) }) }
}

/** Settings that are arguments of a call, or whose absence the answer shows. */
const OTHERS = new Set(['presence_penalty', 'frequency_penalty', 'logprobs', 'top_logprobs'])

/** Returns notes on the settings that a provider type has no option for; the packages do not receive them. */
export function unsupportedSettings(type: ProviderType, settings: VendorSettings = {}): VendorNote[] {
  const names = optionNames[type] ?? {}
  return Object.keys(reasoningOf(settings).settings).flatMap((setting): VendorNote[] =>
    OTHERS.has(setting) || setting in names
      ? []
      : [{ kind: 'setting_left_out', setting, message: 'the vendor does not have it' }],
  )
}
