import { z } from 'zod'
import { UsageTotals } from '#control/usage/totals.ts'
import { ignoredSettings } from '#execution/providers/ignored-params.ts'
import type { ModelMessage, TokenLogprob } from '#execution/providers/model-messages.ts'
import { phasedParts } from '#execution/providers/vendor-parts.ts'
import { Annotations, type GenerationRow, type JournalStepRow, type OpenStep } from '../model.ts'

/** Response to a request that does not wait for the turn. */
export const AcceptedTurn = z
  .object({ status: z.literal('accepted'), generation_id: z.string(), trace_id: z.string() })
  .meta({ id: 'TurnAccepted' })

export const IgnoredParams = z
  .array(z.string())
  .optional()
  .describe('Settings that the vendor of the model ignored. Absent without any.')

/** Result of a completed or paused turn of an agent outside conversations. */
export const GenerateResult = z
  .object({
    id: z.string(),
    trace_id: z.string(),
    status: z.enum(['completed', 'requires_action']),
    agent_version: z.int(),
    ai_provider_id: z.string().nullable(),
    output: z
      .object({
        model: z.string(),
        content: z.string(),
        finish_reason: z.string(),
        object: z.unknown(),
        annotations: Annotations.optional(),
        response_messages: z.array(z.record(z.string(), z.unknown())).describe('Messages of the turn'),
      })
      .nullable(),
    required_action: z.record(z.string(), z.unknown()).nullable(),
    usage: UsageTotals.nullable(),
    reasoning: z.string().optional().describe('Reasoning of the model, for clients of the OpenAI API only'),
    logprobs: z
      .array(
        z.object({
          step: z.int().describe('Number of the step, from 1'),
          tokens: z.array(z.record(z.string(), z.unknown())).describe('Tokens of its text with their probabilities'),
        }),
      )
      .optional()
      .describe('Probabilities of the tokens by step, for clients of the OpenAI API only'),
    ignored_params: IgnoredParams,
  })
  .meta({ id: 'GenerateResult' })

/** Returns a step as messages: the assistant's message and, with tool calls, their results. */
export function stepMessages(step: JournalStepRow): ModelMessage[] {
  const assistant: ModelMessage = {
    role: 'assistant',
    content: [
      ...(step.text ? [{ type: 'text' as const, text: step.text }] : []),
      ...step.tool_calls.map(call => ({
        type: 'tool_call' as const,
        tool_call_id: call.id,
        tool_name: call.tool_name,
        args: call.args,
      })),
    ],
  }
  if (step.tool_results.length === 0) return [assistant]
  return [
    assistant,
    {
      role: 'tool',
      content: step.tool_results.map(({ tool_call_id, tool_name, result, error }) => ({
        type: 'tool_result' as const,
        tool_call_id,
        tool_name,
        result,
        error,
      })),
    },
  ]
}

/** Returns a step as messages of a later request, with the parts that its vendor requires back. */
export function promptMessages(step: JournalStepRow): ModelMessage[] {
  const [assistant, ...results] = stepMessages(step)
  const { vendor_parts: parts, ai_provider_id, model } = step
  if (!parts || ai_provider_id === null || model === null) return [assistant, ...results]
  return [{ ...assistant, vendor: { ai_provider_id, model, parts } } as ModelMessage, ...results]
}

/** Returns a step as messages of later turns. */
export function laterMessages(step: JournalStepRow): ModelMessage[] {
  const vendor_parts = phasedParts(step.vendor_parts)
  return vendor_parts ? promptMessages({ ...step, vendor_parts }) : stepMessages(step)
}

/** Probabilities of the tokens of a step's text. */
export type StepLogprobs = { step: number; tokens: TokenLogprob[] }

/** Returns what a client of a chat protocol gets beyond the result: only the attempt that ends the turn has it. */
export const clientParts = ({
  reasoning,
  logprobs,
}: {
  reasoning: readonly string[]
  logprobs: readonly StepLogprobs[]
}) => ({
  ...(reasoning.length > 0 && { reasoning: reasoning.join('\n\n') }),
  ...(logprobs.length > 0 && { logprobs }),
})

/** Returns the result for a caller that waits for an agent turn; for a paused turn, `open` is the step in progress. */
export function agentResult(
  generation: GenerationRow,
  steps: readonly JournalStepRow[],
  open?: Pick<JournalStepRow, 'ai_provider_id' | 'notes'>,
) {
  const { output } = generation
  const ignored = ignoredSettings([...steps, ...(open ? [open] : [])])
  return {
    id: generation.id,
    trace_id: generation.trace_id,
    status: generation.status,
    agent_version: generation.agent_version,
    ai_provider_id: generation.publisher_project_id === null ? ((open ?? steps.at(-1))?.ai_provider_id ?? null) : null,
    output: output && { ...output, response_messages: steps.flatMap(stepMessages) },
    required_action: generation.required_action,
    usage: generation.usage,
    ...(ignored.length > 0 && { ignored_params: ignored }),
  }
}

/** Returns the tool calls required from the client of a paused turn. */
export const requiredAction = (
  step: OpenStep,
  pending: readonly { position: number; args: Record<string, unknown> }[],
) => ({
  type: 'submit_tool_outputs',
  tool_calls: pending.map(({ position, args }) => {
    const { id, tool_name } = step.tool_calls[position]
    return { id, tool_call_id: id, tool_name, args }
  }),
})
