import type { Services } from '#core/base/services.ts'
import { traced } from '#core/base/telemetry.ts'
import { inputContent, outputContent } from './call-content.ts'
import { CallProgress } from './call-progress.ts'
import { callSdk } from './call-sdk.ts'
import { modelCallSpan, noteModelCall } from './call-span.ts'
import { estimatedUsage } from './estimated-usage.ts'
import { type ModelFailure, modelFailure, type TimeLimit } from './failure.ts'
import { countModelCall } from './metrics.ts'
import type { ProviderRow } from './model.ts'
import type { ModelAnswer, ModelRequest, ModelUsage } from './model-messages.ts'
import type { ModelClient } from './models.ts'
import { fitMedia } from './outgoing/fit-media.ts'
import { mediaLimits } from './outgoing/media-limits.ts'

export { modelFailure, modelRetryDelay } from './failure.ts'

/** `isShown`: whether the caller received a part of the answer. */
export type ModelCallOutcome = { isShown: boolean } & (
  | { ok: true; answer: ModelAnswer }
  | {
      ok: false
      failure: ModelFailure
      /** Tokens of an answer that began and failed, which may be billed; absent if none began. */
      used?: ModelUsage
    }
)

/**
 * Makes one attempt. A vendor failure or an invalid record is returned as a value; only an abort by the caller is
 * thrown, and what had arrived is reported to `request.onUnused`, because vendors bill it.
 */
export const attemptCall = (
  services: Services,
  client: ModelClient,
  provider: ProviderRow,
  model: string,
  request: ModelRequest,
): Promise<ModelCallOutcome> =>
  traced(modelCallSpan, { provider, model, request }, async span => {
    const progress = new CallProgress()
    if (span?.takesContent) span.setContent(inputContent(request, client.secrets))
    const outcome = await attemptOnce(services, { client, provider, model }, request, progress)
    if (span) noteModelCall(span, outcome, progress)
    if (span?.takesContent && outcome.ok) span.setContent(outputContent(outcome.answer, client.secrets))
    return outcome
  })

async function attemptOnce(
  services: Services,
  { client, provider, model }: { client: ModelClient; provider: ProviderRow; model: string },
  request: ModelRequest,
  progress: CallProgress,
): Promise<ModelCallOutcome> {
  request.signal.throwIfAborted()
  const deadline = new AbortController()
  const abort = () => deadline.abort(request.signal.reason)
  request.signal.addEventListener('abort', abort, { once: true })
  const { MODEL_CALL_TIMEOUT_MS, MODEL_STREAM_IDLE_MS } = services.config
  let exceeded: TimeLimit | null = null
  const stop = (limit: TimeLimit) => {
    exceeded ??= limit
    deadline.abort(new DOMException('timed out', 'TimeoutError'))
  }
  const total: TimeLimit = { kind: 'total', ms: request.timeout_ms ?? MODEL_CALL_TIMEOUT_MS }
  const idle: TimeLimit = { kind: 'idle', ms: MODEL_STREAM_IDLE_MS }
  let timer: NodeJS.Timeout | undefined
  const recordMetrics = (
    outcome: 'answered' | 'failed' | 'timed_out' | 'aborted',
    failed: string | null = null,
    { usage } = progress as { usage: ModelUsage | null },
  ) => {
    const { durationMs, firstPieceMs } = progress
    countModelCall(provider, model, { outcome, durationMs, firstPieceMs, usage, failed })
  }
  const target = { ai_provider_id: provider.id, model }
  const limited = { ...request, signal: deadline.signal }
  try {
    const limits = mediaLimits(client.type, client.dialect, model)
    const { signal } = deadline
    const media = await fitMedia(limited, limits, { services, project: provider.project_id, signal })
    // Conversions are no time of the vendor.
    timer = setTimeout(() => stop(total), total.ms)
    const answer = await callSdk(client, target, media.request, {
      progress,
      idle: { ms: idle.ms, onIdle: () => stop(idle) },
    })
    if (media.notes.length > 0) answer.notes = [...media.notes, ...(answer.notes ?? [])]
    recordMetrics('answered', null, answer)
    return { ok: true, answer: { ...answer, ...target }, isShown: progress.isShown }
  } catch (error) {
    const { isShown, characters } = progress
    const used = progress.usage ?? (characters > 0 ? estimatedUsage(request, characters) : null)
    if (request.signal.aborted) {
      recordMetrics('aborted', 'aborted')
      if (used) request.onUnused?.({ ...target, usage: used })
      throw request.signal.reason
    }
    const failure = modelFailure(error, { ...target, secrets: client.secrets, exceeded, isShown })
    recordMetrics(exceeded ? 'timed_out' : 'failed', failure.class ?? failure.code)
    return { ok: false, failure, ...(used && { used }), isShown }
  } finally {
    clearTimeout(timer)
    request.signal.removeEventListener('abort', abort)
  }
}
