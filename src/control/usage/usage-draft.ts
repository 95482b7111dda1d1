import type { METER_TYPES } from './model.ts'

/** A measured quantity of usage. */
export type UsageComponent = { component: string; quantity: number; unit: string; billable: boolean }

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
  model: string
  source: string | null
  components: UsageComponent[]
  /** Input and output of a tool call or turn, from which prices of the tool or agent compute quantities. */
  call?: { input: unknown; output: unknown }
}

/** Tokens of a model call; `input_tokens` excludes cached and cache-write tokens. */
export type TokenCounts = {
  input_tokens: number
  cached_tokens: number
  cache_write_tokens: number
  output_tokens: number
  reasoning_tokens: number
}

/** Returns the non-zero components of a model call. Reasoning tokens are included in the output and not billable. */
export const tokenComponents = (counts: TokenCounts): UsageComponent[] =>
  (['input_tokens', 'cached_tokens', 'cache_write_tokens', 'output_tokens', 'reasoning_tokens'] as const)
    .map(component => ({
      component,
      quantity: counts[component],
      unit: 'token',
      billable: component !== 'reasoning_tokens',
    }))
    .filter(({ quantity }) => quantity > 0)

/** Assumed ratio when a provider reports no token counts. */
const CHARACTERS_PER_TOKEN = 4

/** Returns the estimated number of tokens of a text. */
export const estimatedTokens = (characters: number): number => Math.ceil(characters / CHARACTERS_PER_TOKEN)
