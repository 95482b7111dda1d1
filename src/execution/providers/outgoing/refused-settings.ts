import { LRUCache } from 'lru-cache'
import { processSingleton } from '../../../core/process/process-singleton.ts'
import type { Services } from '../../../core/process/services.ts'
import type { ModelFailure } from '../failure.ts'
import type { ModelRequest } from '../model-messages.ts'

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
} as const

export type RefusedSetting = keyof typeof SETTINGS

/** What a refusal of a setting says besides its name. */
const REFUSALS = ['unsupported', 'support', 'not allowed', 'cannot', "can't", 'deprecated', 'only', 'instead']

const DAY_MS = 86_400_000
const MAX_MODELS = 10_000

const remembered = processSingleton(() => new LRUCache<string, Set<RefusedSetting>>({ max: MAX_MODELS, ttl: DAY_MS }))

const keyOf = (providerId: string, model: string): string => `${providerId} ${model}`

/** Returns the settings that a model refused in the last day. */
export const refusedSettings = (services: Services, providerId: string, model: string): ReadonlySet<RefusedSetting> =>
  remembered(services).get(keyOf(providerId, model)) ?? new Set()

/**
 * Remembers the settings of a request that a vendor's refusal names. Returns whether there are any, so that the call can
 * be made without them.
 */
export function rememberRefusal(
  services: Services,
  providerId: string,
  model: string,
  request: ModelRequest,
  { meta }: ModelFailure,
): boolean {
  const text = `${meta.provider_response_body ?? ''}`.toLowerCase()
  if (meta.provider_status_code !== 400 || !REFUSALS.some(word => text.includes(word))) return false
  const known = refusedSettings(services, providerId, model)
  const named = (Object.keys(SETTINGS) as RefusedSetting[]).filter(
    name => !known.has(name) && settingOf(request, name) != null && SETTINGS[name].some(each => text.includes(each)),
  )
  if (named.length === 0) return false
  remembered(services).set(keyOf(providerId, model), new Set([...known, ...named]))
  return true
}

const ARGUMENTS = ['temperature', 'top_p', 'seed', 'stop', 'max_output_tokens'] as const
const isArgument = (name: RefusedSetting): name is (typeof ARGUMENTS)[number] =>
  (ARGUMENTS as readonly string[]).includes(name)

const settingOf = (request: ModelRequest, name: RefusedSetting): unknown =>
  isArgument(name) ? request[name] : request.vendor_settings?.[name]

/** Returns a request without settings that a model refuses, and the names of those that it had. */
export function withoutRefused(
  request: ModelRequest,
  refused: ReadonlySet<RefusedSetting>,
): { request: ModelRequest; dropped: RefusedSetting[] } {
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
    else delete vendor_settings[name]
  return { request: rest, dropped }
}
