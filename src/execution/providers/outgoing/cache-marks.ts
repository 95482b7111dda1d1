import type { LanguageModelV4Message, SharedV4ProviderOptions } from '@ai-sdk/provider'
import type { ProviderType } from '../model.ts'
import type { ModelRequest } from '../model-messages.ts'

/** Models of Anthropic on Bedrock that cache prefixes: from 3.5 Haiku and 3.7 Sonnet on. */
const CACHES_ON_BEDROCK = /anthropic\.claude-(?!v\d|instant|3-(?:haiku|sonnet|opus)|3-5-sonnet)/

/** Where the prefixes of a request end that the vendor caches. */
export type CacheMarks = {
  mark: SharedV4ProviderOptions
  /** Whether only the instructions are marked: some models on Bedrock refuse other marks. */
  systemOnly: boolean
}

/**
 * Returns the marks of a request; null without caching. By default requests with tools are cached where the vendor charges
 * less for it and caches only what requests mark: later steps repeat the earlier ones. Other vendors cache by themselves.
 */
export function cacheMarks(
  type: ProviderType,
  model: string,
  { prompt_caching, prompt_cache_ttl, tools }: Pick<ModelRequest, 'prompt_caching' | 'prompt_cache_ttl' | 'tools'>,
): CacheMarks | null {
  const caches = type === 'anthropic' || (type === 'bedrock' && CACHES_ON_BEDROCK.test(model))
  if (!(prompt_caching ?? (caches && tools.length > 0))) return null
  const ttl = prompt_cache_ttl === '1h' && caches ? { ttl: '1h' } : {}
  return {
    mark: {
      anthropic: { cacheControl: { type: 'ephemeral', ...ttl } },
      bedrock: { cachePoint: { type: 'default', ...ttl } },
    },
    systemOnly: !caches,
  }
}

/**
 * Marks the last block of the newest message and of the previous request, which the vendor has cached. It finds a prefix only
 * within 20 blocks before a mark, which a step with many calls exceeds.
 * @param changing index of the first message that changes with each turn; null without one
 */
export function markMessages(
  messages: LanguageModelV4Message[],
  { mark, systemOnly }: CacheMarks,
  changing: number | null,
): void {
  if (systemOnly) return
  const answer = messages.findLastIndex(({ role }) => role === 'assistant')
  const previous = changing !== null && answer < changing ? changing - 1 : answer - 1
  for (const index of new Set([previous, messages.length - 1]))
    if (index >= 0) messages[index] = { ...messages[index], providerOptions: mark }
}
