import type { METER_TYPES } from './model.ts'

/** A measured quantity of usage. */
export type UsageComponent = {
  component: string
  quantity: number
  unit: string
  billable: boolean
  /** Tokens of the whole prompt of its model call, on which its price may depend. */
  prompt_tokens?: number
}

/** Resources that usage is attributed to; the ids remain after their deletion. */
export type Attribution = {
  ai_provider_id?: string | null
  agent_id?: string | null
  generation_id?: string | null
  trace_id?: string | null
  orchestration_run_id?: string | null
  node_id?: string | null
  tool_id?: string | null
  tool_action?: string | null
  actor_id?: string | null
  session_id?: string | null
  trigger_id?: string | null
  action_id?: string | null
  publisher_project_id?: string | null
}

/** Measured usage before pricing. */
export type UsageDraft = Attribution & {
  /** Usage with the same key is written once. */
  idempotency_key: string
  project_id: string
  meter_type: (typeof METER_TYPES)[number]
  /** Billing provider, or `unknown`. */
  provider: string
  /** Requested model. */
  model: string
  /** Model that the vendor names in its answer. */
  served_model?: string | null
  /** Service tier that the vendor names in its answer. */
  service_tier?: string | null
  source: string | null
  components: UsageComponent[]
  /** Input and output of a tool call or turn, from which prices of the tool or agent compute quantities. */
  call?: { input: unknown; output: unknown }
}

const TOKENS = ['input_tokens', 'cached_tokens', 'cache_write_tokens', 'output_tokens', 'reasoning_tokens'] as const

/** Tokens that vendors price separately, with the count that includes them. */
export const TOKEN_PARTS = {
  cache_write_1h_tokens: 'cache_write_tokens',
  cache_write_12h_tokens: 'cache_write_tokens',
  cached_audio_tokens: 'cached_tokens',
  audio_input_tokens: 'input_tokens',
  image_input_tokens: 'input_tokens',
  audio_output_tokens: 'output_tokens',
  image_output_tokens: 'output_tokens',
} as const satisfies Record<string, (typeof TOKENS)[number]>
export type TokenPart = keyof typeof TOKEN_PARTS
export const TOKEN_PART_NAMES = Object.keys(TOKEN_PARTS) as TokenPart[]

/** Returns the component whose count includes a component: itself unless it is a part. */
export const wholeOf = (component: string): string => TOKEN_PARTS[component as TokenPart] ?? component

/** Quantities of model calls that are not tokens, with their units. */
const CALL_QUANTITIES = {
  web_searches: { unit: 'search', billable: true },
  unreported_calls: { unit: 'call', billable: true },
  estimated_calls: { unit: 'call', billable: false },
} as const

/** What a model call used besides the five counts, and parts of these. Zeros are absent. */
export type UsageDetails = Partial<
  Record<TokenPart | keyof typeof CALL_QUANTITIES, number> & {
    /** Tokens of the largest prompt, if the counts are of several calls. */
    largest_prompt_tokens: number
  }
>

/** Tokens of a model call; `input_tokens` excludes cached and cache-write tokens. */
export type TokenCounts = Record<(typeof TOKENS)[number], number> & { details?: UsageDetails }

const NO_TOKENS: TokenCounts = {
  input_tokens: 0,
  cached_tokens: 0,
  cache_write_tokens: 0,
  output_tokens: 0,
  reasoning_tokens: 0,
}

/** Usage of a call whose vendor reported none. */
export const UNREPORTED: TokenCounts = { ...NO_TOKENS, details: { unreported_calls: 1 } }

const promptTokens = ({ details, input_tokens, cached_tokens, cache_write_tokens }: TokenCounts): number =>
  details?.largest_prompt_tokens ?? input_tokens + cached_tokens + cache_write_tokens

/**
 * Returns the non-zero components of a model call; null: the vendor reported no usage. Reasoning tokens are included in the
 * output and not billable; the other token components do not overlap.
 */
export function tokenComponents(usage: TokenCounts | null): UsageComponent[] {
  const counts = usage ?? UNREPORTED
  const { details } = counts
  const prompt_tokens = promptTokens(counts)
  const components: UsageComponent[] = []
  const add = (component: string, quantity: number, unit: string, billable: boolean) => {
    if (quantity > 0) components.push({ component, quantity, unit, billable, prompt_tokens })
  }
  const partsOf = (name: string): number =>
    TOKEN_PART_NAMES.reduce((sum, part) => (TOKEN_PARTS[part] === name ? sum + (details?.[part] ?? 0) : sum), 0)
  for (const name of TOKENS)
    add(name, counts[name] - (details ? partsOf(name) : 0), 'token', name !== 'reasoning_tokens')
  if (!details) return components
  for (const name of TOKEN_PART_NAMES) add(name, details[name] ?? 0, 'token', true)
  for (const [name, { unit, billable }] of Object.entries(CALL_QUANTITIES))
    add(name, details[name as keyof typeof CALL_QUANTITIES] ?? 0, unit, billable)
  return components
}

/** The usage of an answer of a model, and what its vendor says about how it was served. */
export type UsedAnswer = { usage: TokenCounts | null; served_model?: string | null; service_tier?: string | null }

/** Returns the fields of the usage of an answer. */
export const answerUsage = ({ usage, served_model, service_tier }: UsedAnswer) => ({
  served_model: served_model ?? null,
  service_tier: service_tier ?? null,
  components: tokenComponents(usage),
})

/** Returns the sum of the usage of calls; null without any. */
export function sumCounts(calls: readonly TokenCounts[]): TokenCounts | null {
  if (calls.length < 2) return calls[0] ?? null
  const sums = Object.fromEntries(
    TOKENS.map(name => [name, calls.reduce((sum, counts) => sum + counts[name], 0)]),
  ) as Record<(typeof TOKENS)[number], number>
  const details: UsageDetails = {}
  for (const { details: { largest_prompt_tokens: _, ...of } = {} } of calls)
    for (const [name, quantity] of Object.entries(of) as [keyof typeof of, number][])
      details[name] = (details[name] ?? 0) + quantity
  return Object.keys(details).length > 0 ? { ...sums, details } : sums
}

/** Returns the sum of the usage of calls that are one answer; prices go by its largest prompt. */
export function sumAnswer(calls: readonly TokenCounts[]): TokenCounts | null {
  const sum = sumCounts(calls)
  if (!sum || calls.length < 2) return sum
  return { ...sum, details: { ...sum.details, largest_prompt_tokens: Math.max(...calls.map(promptTokens)) } }
}

/** Assumed ratio when a provider reports no token counts. */
const CHARACTERS_PER_TOKEN = 4

/** Returns the estimated number of tokens of a text. */
export const estimatedTokens = (characters: number): number => Math.ceil(characters / CHARACTERS_PER_TOKEN)
