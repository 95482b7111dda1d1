import { systemClock } from '#core/base/clock.ts'
import type { Attributes, Span, SpanStart } from '#core/base/telemetry.ts'
import { ATTRIBUTE, EARLIER, MUSTER, OPERATION, providerName } from '#core/base/telemetry-names.ts'
import type { SpanNote } from '#core/writes/span-outbox.ts'
import type { GenerationRow } from '../model.ts'
import type { TurnAttempt } from './turn-attempt.ts'

/** The span of an attempt at a turn. */
export function turnSpan({ agent, generation, loaded }: TurnAttempt): SpanStart {
  const { name, model } = agent ?? {}
  const { provider, route } = loaded
  const first = provider ?? route?.providers.find(({ id }) => id === route.route.targets[0].ai_provider_id)
  const waitMs = systemClock.now().getTime() - new Date(generation.updated_at).getTime()
  return {
    name: `${OPERATION.agent} ${name ?? ''}`.trim(),
    unit: true,
    from: { context: loaded.traceContext, at: generation.updated_at },
    content: generation.content_mode === 'full' && generation.publisher_project_id === null,
    user: loaded.user,
    shared: {
      [MUSTER.project]: generation.project_id,
      [MUSTER.run]: generation.orchestration_run_id,
      [ATTRIBUTE.session]: generation.session_id,
      [ATTRIBUTE.conversation]: generation.conversation_id,
    },
    attributes: {
      [ATTRIBUTE.operation]: OPERATION.agent,
      [ATTRIBUTE.provider]: first && providerName(first.provider),
      [ATTRIBUTE.agentName]: name,
      [ATTRIBUTE.requestModel]: model ?? provider?.default_model ?? route?.route.targets[0].model,
      [MUSTER.agent]: generation.agent_id,
      [MUSTER.generation]: generation.id,
      [MUSTER.queueWait]: generation.attempt === 0 ? Math.max(0, waitMs) : null,
    },
  }
}

/** Adds the outcome of an attempt to its span. */
export function noteTurn(span: Span, { generation, agent }: TurnAttempt, exit: string): void {
  span.set(outcomeOf(generation, agent, exit))
  const { status, error } = generation
  if (exit === 'settled' && status === 'failed') span.fail(error?.code ?? 'INTERNAL_ERROR')
}

/** Returns what the target of the project gets of a turn that ends as `after`. Of an agent of another project it gets the turn only. */
export const settledTurn = ({ agent }: TurnAttempt, after: GenerationRow): SpanNote => {
  const isForeign = after.publisher_project_id !== null
  const { id: generation_id, trace_id } = after
  return {
    attributes: { ...outcomeOf(after, agent, 'settled'), ...(isForeign && { [ATTRIBUTE.provider]: null }) },
    error: after.status === 'failed' ? (after.error?.code ?? 'INTERNAL_ERROR') : null,
    turn: { generation_id, trace_id, keepsContent: after.content_mode === 'full' && !isForeign },
    rootOnly: isForeign,
  }
}

function outcomeOf(generation: GenerationRow, agent: TurnAttempt['agent'], exit: string): Attributes {
  const { status, usage, attempt } = generation
  const isSettled = exit === 'settled'
  return {
    [ATTRIBUTE.agentVersion]: String(generation.agent_version ?? agent?.version ?? ''),
    [MUSTER.attempt]: attempt,
    [MUSTER.outcome]: isSettled ? status : exit,
    ...(isSettled &&
      usage && {
        [ATTRIBUTE.inputTokens]: usage.input_tokens,
        [ATTRIBUTE.outputTokens]: usage.output_tokens,
        [ATTRIBUTE.reasoningTokens]: usage.reasoning_tokens,
        [ATTRIBUTE.cacheReadTokens]: usage.cached_tokens,
        [ATTRIBUTE.cacheWriteTokens]: usage.cache_write_tokens,
        [EARLIER.cacheWriteTokens]: usage.cache_write_tokens,
        [MUSTER.cost]: usage.cost_usd,
      }),
  }
}
