import { AppError } from '#core/base/errors.ts'
import { findAgent } from '#execution/agents/model.ts'
import { findGrantingShares } from '#execution/grants/grants.ts'
import { type AgUiRequest, callOperation } from './call.ts'
import type { SettledCall, TurnReads } from './events.ts'

/** Reads in addition to the frames of a turn, with the permissions of the caller. */

/** Returns the result of a read; undefined if the caller may not read it or it is gone. */
async function readIfAllowed<T>(request: AgUiRequest, operation: string, params: Record<string, string>) {
  try {
    return (await callOperation(request, operation, { params })).body as T
  } catch (error) {
    if (error instanceof AppError && [403, 404].includes(error.status)) return undefined
    throw error
  }
}

type Step = {
  tool_calls: { id: string; args: unknown }[]
  tool_results: { tool_call_id: string; result: unknown; error: unknown }[]
}

export const callReads =
  (request: AgUiRequest): TurnReads['calls'] =>
  async generation_id => {
    const transcript = await readIfAllowed<{ steps: Step[] }>(request, 'getGenerationTranscript', { generation_id })
    if (!transcript) return null
    const calls = transcript.steps.flatMap(({ tool_calls, tool_results }) =>
      tool_calls.map(({ id, args }): SettledCall => {
        const outcome = tool_results.find(({ tool_call_id }) => tool_call_id === id)
        const failed = outcome?.error != null
        return { tool_call_id: id, args, result: failed ? { error: outcome?.error } : outcome?.result, failed }
      }),
    )
    return new Map(calls.map(call => [call.tool_call_id, call]))
  }

/** Names agents that the project of a turn may run; others by their ids, which the model chooses. */
export const agentNameReads =
  ({ services: { pool } }: AgUiRequest, projectId: string): TurnReads['agentName'] =>
  async id => {
    const agent = await findAgent(pool, id)
    if (!agent) return id
    const isVisible =
      agent.project_id === projectId || (await findGrantingShares(pool, 'agent', projectId, [id])).has(id)
    return (isVisible && agent.name) || id
  }

/** Whether a turn was cancelled, for an end user, who sees no reason of a failure. */
export const cancelReads =
  (request: AgUiRequest): TurnReads['isCancelled'] =>
  async generation_id => {
    if (!request.caller.end_user) return false
    const turn = await readIfAllowed<{ stop_reason: string | null }>(request, 'getGeneration', { generation_id })
    return turn?.stop_reason === 'cancelled'
  }

type Usage = { input_tokens?: number; output_tokens?: number }

export const usageReads =
  (request: AgUiRequest): TurnReads['usage'] =>
  async generation_id => {
    const turn = await readIfAllowed<{ usage: Usage | null; output: { model?: string } | null }>(
      request,
      'getGeneration',
      { generation_id },
    )
    if (!turn?.usage) return undefined
    const { input_tokens, output_tokens } = turn.usage
    return [{ model: turn.output?.model, inputTokens: input_tokens, outputTokens: output_tokens }]
  }
