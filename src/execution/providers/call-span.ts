import { hostAttributes, type Span, type SpanStart } from '#core/base/telemetry.ts'
import { ATTRIBUTE, EARLIER, OPERATION, providerName } from '#core/base/telemetry-names.ts'
import type { CallProgress } from './call-progress.ts'
import { inputTokens } from './metrics.ts'
import type { ProviderRow } from './model.ts'
import type { ModelAnswer, ModelRequest, ModelUsage } from './model-messages.ts'

type Called = { provider: ProviderRow; model: string; request: ModelRequest }

/** The span of one attempt at a model call. */
export const modelCallSpan = ({ provider, model, request }: Called): SpanStart => ({
  name: `${OPERATION.chat} ${model}`,
  kind: 'client',
  attributes: {
    [ATTRIBUTE.operation]: OPERATION.chat,
    [ATTRIBUTE.provider]: providerName(provider.provider),
    [ATTRIBUTE.requestModel]: model,
    [ATTRIBUTE.requestStream]: request.stream !== false || null,
    [ATTRIBUTE.temperature]: request.temperature,
    [ATTRIBUTE.topP]: request.top_p,
    [ATTRIBUTE.maxTokens]: request.max_output_tokens,
    [ATTRIBUTE.outputType]: request.output_schema || request.json ? 'json' : 'text',
    ...hostAttributes(provider.base_url),
  },
})

type Outcome = { ok: true; answer: ModelAnswer } | { ok: false; failure: { code: string }; used?: ModelUsage }

/** Adds the outcome of the attempt to its span. */
export function noteModelCall(span: Span, outcome: Outcome, { firstPieceMs, responseId }: CallProgress): void {
  span.set({
    [ATTRIBUTE.firstChunk]: firstPieceMs && firstPieceMs / 1000,
    [ATTRIBUTE.responseId]: responseId,
  })
  if (!outcome.ok) {
    span.fail(outcome.failure.code)
    span.set(usageAttributes(outcome.used))
    return
  }
  const { answer } = outcome
  span.set({
    [ATTRIBUTE.responseModel]: answer.served_model,
    [ATTRIBUTE.finishReasons]: [answer.finish_reason],
    ...usageAttributes(answer.usage),
  })
}

/** Attributes of the tokens of a call. */
const usageAttributes = (usage: ModelUsage | null | undefined): NonNullable<SpanStart['attributes']> =>
  usage
    ? {
        [ATTRIBUTE.inputTokens]: inputTokens(usage),
        [ATTRIBUTE.outputTokens]: usage.output_tokens,
        [ATTRIBUTE.reasoningTokens]: usage.reasoning_tokens,
        [ATTRIBUTE.cacheReadTokens]: usage.cached_tokens,
        [ATTRIBUTE.cacheWriteTokens]: usage.cache_write_tokens,
        [EARLIER.cacheWriteTokens]: usage.cache_write_tokens,
      }
    : {}
