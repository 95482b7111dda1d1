import type { LanguageModelV4Content, LanguageModelV4Usage, SharedV4ProviderMetadata } from '@ai-sdk/provider'
import type { UsageDetails } from '#control/usage/meter.ts'
import { storableText, truncateChars } from '#core/base/storable-text.ts'
import type { BodyFacts } from './body-facts.ts'
import type { ProviderType } from './model.ts'
import type { ModelAnswer, ModelUsage } from './model-messages.ts'

/** What an answer says about its usage, in the form of the packages and as the vendor spells it. */
export type Reported = {
  type: ProviderType
  /** Requested model. */
  model: string
  usage: LanguageModelV4Usage
  metadata: SharedV4ProviderMetadata | undefined
  content: readonly LanguageModelV4Content[]
  /** Model in the package's metadata of the response. */
  modelId: string | undefined
  /** What only the body says. */
  facts: BodyFacts | null
}

/** Above any real count; the sum of millions of clamped counts stays a safe integer. */
const MAX_TOKENS = 1_000_000_000

/** Clamps a reported count so that it can be summed; 0 for anything but a number. */
const clampTokens = (count: unknown): number =>
  typeof count === 'number' && count > 0 ? Math.min(MAX_TOKENS, Math.ceil(count)) : 0

type Json = Record<string, any>

/** Returns the usage of an answer; null if the vendor reported none. */
export function reportedUsage(reported: Reported): ModelUsage | null {
  const { inputTokens: input, outputTokens: output } = reported.usage
  const raw = rawUsage(reported)
  const total = clampTokens(input.total)
  // Some servers report zeros instead of nothing.
  if (total === 0 && clampTokens(output.total) === 0) return null
  const written = clampTokens(input.cacheWrite) || cacheWrites(raw)
  const cached = clampTokens(input.cacheRead) || cacheReads(raw)
  const reasoning = clampTokens(output.reasoning)
  const outside = reasoningOutside(raw, reasoning)
  const counts: ModelUsage = {
    input_tokens: Math.max(0, total - cached - written),
    cached_tokens: cached,
    cache_write_tokens: written,
    output_tokens: clampTokens(output.total) + outside,
    reasoning_tokens: Math.max(reasoning, outside),
  }
  const details = detailsOf(counts, raw, reported)
  return details ? { ...counts, details } : counts
}

/** Returns the vendor's own usage, of which the body may have more than the package returns. */
function rawUsage({ usage, facts }: Reported): Json {
  const raw = (usage.raw ?? {}) as Json
  return facts?.usage && facts.usage.prompt_tokens === raw.prompt_tokens ? { ...raw, ...facts.usage } : raw
}

/** Cache reads in other fields than OpenAI has: DeepSeek, Kimi. */
const cacheReads = (raw: Json): number => clampTokens(raw.prompt_cache_hit_tokens) || clampTokens(raw.cached_tokens)

/** Cache writes that gateways with the format of OpenAI report: OpenRouter, LiteLLM. */
const cacheWrites = ({ prompt_tokens_details: of }: Json): number =>
  clampTokens(of?.cache_write_tokens) || clampTokens(of?.cache_creation_tokens)

/**
 * Returns the reasoning tokens that `completion_tokens` leaves out, as xAI does, and Google in its mount of this format: the
 * vendor's own total includes them.
 */
function reasoningOutside(raw: Json, reasoning: number): number {
  const output = clampTokens(raw.completion_tokens ?? raw.output_tokens)
  const total = clampTokens(raw.total_tokens)
  const rest = Math.max(0, total - clampTokens(raw.prompt_tokens ?? raw.input_tokens) - output)
  if (reasoning > output && total > 0) return reasoning
  return reasoning === 0 || rest === reasoning ? rest : 0
}

function detailsOf(counts: ModelUsage, raw: Json, reported: Reported): UsageDetails | null {
  const parts = { ...openaiParts(raw), ...googleParts(raw) }
  const found: UsageDetails = {}
  const left = { ...counts }
  const take = (
    name: keyof UsageDetails,
    of: 'input_tokens' | 'cached_tokens' | 'cache_write_tokens' | 'output_tokens',
  ) => {
    const quantity = Math.min(left[of], clampTokens(parts[name] ?? 0))
    left[of] -= quantity
    if (quantity > 0) found[name] = quantity
  }
  parts.cache_write_1h_tokens = hourWrites(raw)
  parts.cache_write_12h_tokens = (
    raw.input_tokens_details ?? raw.prompt_tokens_details
  )?.cache_write_tokens_details?.ttl_12h_tokens
  for (const name of ['cache_write_1h_tokens', 'cache_write_12h_tokens'] as const) take(name, 'cache_write_tokens')
  take('cached_audio_tokens', 'cached_tokens')
  for (const name of ['audio_input_tokens', 'image_input_tokens'] as const) take(name, 'input_tokens')
  for (const name of ['audio_output_tokens', 'image_output_tokens'] as const) take(name, 'output_tokens')
  const searches = webSearches(raw, reported)
  if (searches > 0) found.web_searches = searches
  return Object.keys(found).length > 0 ? found : null
}

/** Cache writes of an hour: Anthropic, gateways to it, and Bedrock. */
function hourWrites(raw: Json): number {
  const split = raw.cache_creation ?? raw.prompt_tokens_details?.cache_creation_token_details
  if (split) return clampTokens(split.ephemeral_1h_input_tokens)
  const entries: (Json | null)[] = Array.isArray(raw.cacheDetails) ? raw.cacheDetails : []
  return entries.reduce((sum, each) => (each?.ttl === '1h' ? sum + clampTokens(each.inputTokens) : sum), 0)
}

const openaiParts = ({ prompt_tokens_details: input, completion_tokens_details: output }: Json): UsageDetails => ({
  audio_input_tokens: input?.audio_tokens,
  image_input_tokens: input?.image_tokens,
  audio_output_tokens: output?.audio_tokens,
  image_output_tokens: output?.image_tokens,
})

function googleParts(raw: Json): UsageDetails {
  if (raw.promptTokenCount === undefined) return {}
  const of = (details: unknown, modality: string): number =>
    (Array.isArray(details) ? details : []).reduce(
      (sum: number, each: Json) => (each?.modality === modality ? sum + clampTokens(each.tokenCount) : sum),
      0,
    )
  const input = (modality: string) =>
    of(raw.promptTokensDetails, modality) +
    of(raw.toolUsePromptTokensDetails, modality) -
    of(raw.cacheTokensDetails, modality)
  return {
    cached_audio_tokens: of(raw.cacheTokensDetails, 'AUDIO'),
    audio_input_tokens: input('AUDIO'),
    image_input_tokens: input('IMAGE'),
    audio_output_tokens: of(raw.candidatesTokensDetails, 'AUDIO'),
    image_output_tokens: of(raw.candidatesTokensDetails, 'IMAGE'),
  }
}

/** Models of Google that bill a prompt with searches, whatever their number. */
const BILLS_BY_PROMPT = /gemini-[12]\b/

/** Returns the number of web searches that the vendor bills: as it reports them, else those that its answer contains. */
function webSearches(raw: Json, { metadata, content, model }: Reported): number {
  const counted = raw.server_tool_use?.web_search_requests ?? raw.num_search_queries
  if (typeof counted === 'number') return clampTokens(counted)
  const xai = raw.server_side_tool_usage_details
  if (xai) return clampTokens(xai.web_search_calls) + clampTokens(xai.x_search_calls)
  const queries = Object.values(metadata ?? {}).flatMap(
    of => (of?.groundingMetadata as Json | null | undefined)?.webSearchQueries ?? [],
  )
  if (queries.length > 0) return BILLS_BY_PROMPT.test(model) ? 1 : new Set(queries).size
  const calls = new Set<string>()
  for (const part of content) {
    if (part.type === 'tool-call' && part.providerExecuted && SEARCHES.test(part.toolName)) calls.add(part.toolCallId)
    // OpenAI does not bill the pages that it opens.
    if (part.type === 'tool-result' && isPage(part.result)) calls.delete(part.toolCallId)
  }
  return calls.size
}

const SEARCHES = /^(?:web|x)_?search/i
const isPage = (result: unknown): boolean => {
  const type = (result as Json | null)?.action?.type
  return typeof type === 'string' && type !== 'search'
}

/** Maximum length of the names that a vendor gives to its model and tier. */
const MAX_NAME = 255

/** Returns the model and the service tier that the vendor names. */
export function servedBy({
  type,
  usage,
  metadata,
  modelId,
  facts,
}: Reported): Pick<ModelAnswer, 'served_model' | 'service_tier'> {
  const raw = (usage.raw ?? {}) as Json
  const inMetadata = Object.values(metadata ?? {}).flatMap(of => of?.serviceTier ?? [])[0]
  const tier = (inMetadata as Json)?.type ?? inMetadata ?? raw.service_tier ?? raw.trafficType ?? facts?.tier
  // The package of Bedrock, whose answers name no model, gives the requested one.
  const served = facts?.model ?? (type === 'bedrock' ? undefined : modelId)
  return {
    ...(isName(served) && { served_model: storableText(truncateChars(served, MAX_NAME)) }),
    ...(isName(tier) && { service_tier: storableText(truncateChars(tier, MAX_NAME)) }),
  }
}

const isName = (value: unknown): value is string => typeof value === 'string' && value !== ''
