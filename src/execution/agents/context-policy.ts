import { z } from 'zod'

/** Bound of the model context of an agent, and what happens to the messages beyond it. */
export const ContextPolicy = z
  .strictObject({
    max_context_tokens: z
      .int()
      .min(1000)
      .max(100_000_000)
      .describe('Maximum number of tokens of a model request, estimated from its bytes and the metered input'),
    strategy: z
      .enum(['drop', 'summarize'])
      .describe(
        'Handling of older messages: `drop` — omitted; `summarize` — omitted once a background call has summarized them',
      ),
    keep_last_messages: z
      .int()
      .min(1)
      .max(1000)
      .optional()
      .describe('Number of newest messages that are never omitted. Default 10, at most 1000.'),
    summary_max_tokens: z
      .int()
      .min(50)
      .max(16_000)
      .optional()
      .describe('Maximum number of tokens of a summary, at most half of max_context_tokens. Default 800.'),
    summary_model_route_id: z
      .string()
      .min(1)
      .max(255)
      .nullable()
      .optional()
      .describe('Model route for summaries; the model of the agent if omitted'),
  })
  .meta({ id: 'ContextPolicy' })
export type ContextPolicy = z.output<typeof ContextPolicy>

/** Returns a policy with its defaults. */
export const completePolicy = (policy: ContextPolicy) => ({
  ...policy,
  keep_last_messages: policy.keep_last_messages ?? DEFAULT_KEEP_LAST,
  summary_max_tokens: Math.min(policy.summary_max_tokens ?? 800, Math.floor(policy.max_context_tokens / 2)),
})

export const DEFAULT_KEEP_LAST = 10
