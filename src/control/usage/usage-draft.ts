import type { METER_TYPES } from './model.ts'

/** One billable quantity of a use. */
export type UsageComponent = { component: string; quantity: number; unit: string; billable: boolean }

/** Whom a use is attributed to; ids are kept as they are, whatever becomes of what they name. */
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

/** One billable use as the module that caused it measured it; it is priced when it is written. */
export type UsageDraft = Attribution & {
  /** A repeat with the same key writes nothing. */
  idempotency_key: string
  project_id: string
  meter_type: (typeof METER_TYPES)[number]
  /** As billed; `unknown` where nobody knows. */
  provider: string
  model: string
  source: string | null
  components: UsageComponent[]
  /** Of a call of a tool or a turn of an agent: what prices of that tool or agent compute their quantities from. */
  call?: { input: unknown; output: unknown }
}

/** Tokens of a model call as providers report them, `input_tokens` without cached and newly cached ones. */
export type TokenCounts = {
  input_tokens: number
  cached_tokens: number
  cache_write_tokens: number
  output_tokens: number
  reasoning_tokens: number
}

/** The components of an llm_tokens use; those of zero are left out. Reasoning is part of the output and not billed again. */
export const tokenComponents = (counts: TokenCounts): UsageComponent[] =>
  (['input_tokens', 'cached_tokens', 'cache_write_tokens', 'output_tokens', 'reasoning_tokens'] as const)
    .map(component => ({
      component,
      quantity: counts[component],
      unit: 'token',
      billable: component !== 'reasoning_tokens',
    }))
    .filter(({ quantity }) => quantity > 0)

/** Characters of a token where no provider says how many there were. */
const CHARACTERS_PER_TOKEN = 4

/** Tokens of a text of so many characters, as far as one can tell. */
export const estimatedTokens = (characters: number): number => Math.ceil(characters / CHARACTERS_PER_TOKEN)
