import { z } from 'zod'
import { sumCounts, TOKEN_PART_NAMES, type TokenCounts, type TokenPart, UNREPORTED } from './usage-draft.ts'

const count = (text: string) => z.int().optional().describe(text)

const PARTS: Record<TokenPart, string> = {
  cache_write_1h_tokens: 'Part of the cache writes that is kept for an hour',
  cache_write_12h_tokens: 'Part of the cache writes that is kept for twelve hours',
  cached_audio_tokens: 'Audio in the cached input',
  audio_input_tokens: 'Audio in the uncached input',
  image_input_tokens: 'Images in the uncached input',
  audio_output_tokens: 'Audio in the output',
  image_output_tokens: 'Images in the output',
}

const Details = z
  .object({
    ...(Object.fromEntries(TOKEN_PART_NAMES.map(name => [name, count(PARTS[name])])) as Record<
      TokenPart,
      ReturnType<typeof count>
    >),
    web_searches: count('Web searches that the vendor made'),
    unreported_calls: count('Calls whose tokens the vendor did not report; they are not in the sums'),
    estimated_calls: count('Calls whose tokens are estimated, because they ended before the vendor reported any'),
    largest_prompt_tokens: count('Tokens of the largest prompt, for several calls'),
  })
  .meta({ id: 'UsageDetails' })

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
    details: Details.optional().describe(
      'Parts of these tokens and other quantities of model calls; zeros are left out',
    ),
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
  ...(counts.details && { details: counts.details }),
})

/** Converts totals back to token counts. */
export const countsOf = ({ uncached_input_tokens, details, ...totals }: UsageSums): TokenCounts => ({
  input_tokens: uncached_input_tokens,
  cached_tokens: totals.cached_tokens,
  cache_write_tokens: totals.cache_write_tokens,
  output_tokens: totals.output_tokens,
  reasoning_tokens: totals.reasoning_tokens,
  ...(details && { details }),
})

/** A step as far as its usage goes: null if the vendor reported none, or if the step is no answer of a model. */
type UsedStep = { usage: UsageSums | null; ai_provider_id?: string | null }

/** Whether a model answered the step and its vendor reported no usage. */
export const isUnreported = ({ usage, ai_provider_id }: UsedStep): boolean => usage === null && ai_provider_id != null

/** Returns the totals over steps with usage, and the number of those that should have had any; null if none has any. */
export function sumUsage(steps: readonly UsedStep[]): UsageSums | null {
  if (steps.every(({ usage }) => usage === null)) return null
  const counts = steps.flatMap(step => (step.usage ? countsOf(step.usage) : isUnreported(step) ? UNREPORTED : []))
  const sum = sumCounts(counts)
  return sum && totalsOf(sum)
}
