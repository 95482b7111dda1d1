import { z } from 'zod'
import type { TokenCounts } from './usage-draft.ts'

/** Tokens of a step, a turn or an aggregate. `input_tokens` = uncached + cached + cache writes. */
export const UsageTotals = z
  .object({
    cost_usd: z.number().nullable(),
    input_tokens: z.int(),
    uncached_input_tokens: z.int(),
    output_tokens: z.int(),
    cached_tokens: z.int(),
    cache_write_tokens: z.int(),
    reasoning_tokens: z.int(),
  })
  .meta({ id: 'UsageTotals' })

export type UsageSums = z.infer<typeof UsageTotals>

/** Converts the token counts of a provider to totals without a cost, which pricing adds. */
export const totalsOf = (counts: TokenCounts): UsageSums => ({
  cost_usd: null,
  input_tokens: counts.input_tokens + counts.cached_tokens + counts.cache_write_tokens,
  uncached_input_tokens: counts.input_tokens,
  output_tokens: counts.output_tokens,
  cached_tokens: counts.cached_tokens,
  cache_write_tokens: counts.cache_write_tokens,
  reasoning_tokens: counts.reasoning_tokens,
})

/** Converts totals back to token counts. */
export const countsOf = ({ uncached_input_tokens, ...totals }: UsageSums): TokenCounts => ({
  input_tokens: uncached_input_tokens,
  cached_tokens: totals.cached_tokens,
  cache_write_tokens: totals.cache_write_tokens,
  output_tokens: totals.output_tokens,
  reasoning_tokens: totals.reasoning_tokens,
})

/** Returns the totals over steps with usage; null if there are none. */
export function sumUsage(steps: readonly { usage: UsageSums | null }[]): UsageSums | null {
  const counted = steps.filter(step => step.usage !== null).map(step => step.usage as UsageSums)
  if (counted.length === 0) return null
  const sum = (key: Exclude<keyof UsageSums, 'cost_usd'>) => counted.reduce((total, usage) => total + usage[key], 0)
  return {
    cost_usd: null,
    input_tokens: sum('input_tokens'),
    uncached_input_tokens: sum('uncached_input_tokens'),
    output_tokens: sum('output_tokens'),
    cached_tokens: sum('cached_tokens'),
    cache_write_tokens: sum('cache_write_tokens'),
    reasoning_tokens: sum('reasoning_tokens'),
  }
}
