import { Counter, Histogram } from 'prom-client'
import { counter, histogram } from '#core/base/instruments.ts'
import { modelLabels } from '#core/base/label-values.ts'
import { providerName } from '#core/base/telemetry-names.ts'
import type { ProviderRow } from './model.ts'
import type { ModelUsage } from './model-messages.ts'

export const modelCalls = new Counter({
  name: 'muster_model_calls_total',
  help: 'Model call attempts by provider, model and outcome (answered, failed, timed_out, aborted)',
  labelNames: ['provider', 'model', 'outcome'],
  registers: [],
})

export const modelCallDuration = new Histogram({
  name: 'muster_model_call_duration_seconds',
  help: 'Duration of answered model calls',
  labelNames: ['provider', 'model'],
  buckets: [0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300],
  registers: [],
})

export const modelFirstPiece = new Histogram({
  name: 'muster_model_first_piece_seconds',
  help: 'Time to the first chunk of answered streamed model calls',
  labelNames: ['provider', 'model'],
  buckets: [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
  registers: [],
})

/** Attributes of all calls. */
const CALL = ['gen_ai.operation.name', 'gen_ai.provider.name', 'gen_ai.request.model'] as const

/** Buckets that the conventions recommend, in seconds and in tokens. */
const SECONDS = Array.from({ length: 14 }, (_, power) => 0.01 * 2 ** power)
const TOKENS = Array.from({ length: 14 }, (_, power) => 4 ** power)

/**
 * Metrics of the GenAI conventions. Each has two names: of release v0.1.0, and of the conventions before, which many
 * dashboards read and which end with release 0.3.
 */
const durations = ['gen_ai.client.inference.duration', 'gen_ai.client.operation.duration'].map(name =>
  histogram({
    name,
    unit: 's',
    help: 'Duration of model calls, also of failed ones, which have error_type',
    attributes: [...CALL, 'error.type'],
    buckets: SECONDS,
  }),
)

const firstChunks = ['gen_ai.client.inference.time_to_first_chunk', 'gen_ai.client.operation.time_to_first_chunk'].map(
  name =>
    histogram({
      name,
      unit: 's',
      help: 'Time to the first chunk of answered streamed model calls',
      attributes: CALL,
      buckets: SECONDS,
    }),
)

const tokenUsage = histogram({
  name: 'gen_ai.client.token.usage',
  unit: '{token}',
  help: 'Tokens of model calls by type (input, output)',
  attributes: [...CALL, 'gen_ai.token.type'],
  buckets: TOKENS,
})

/** Counters of tokens; the parts after the first two are included in these. */
const usageCounters = [
  { part: 'input_tokens', of: inputTokens },
  { part: 'output_tokens', of: ({ output_tokens }: ModelUsage) => output_tokens },
  { part: 'cache_read.input_tokens', of: ({ cached_tokens }: ModelUsage) => cached_tokens },
  { part: 'cache_write.input_tokens', of: ({ cache_write_tokens }: ModelUsage) => cache_write_tokens },
  { part: 'reasoning.output_tokens', of: ({ reasoning_tokens }: ModelUsage) => reasoning_tokens },
].map(({ part, of }) => ({
  of,
  tokens: counter({
    name: `gen_ai.client.inference.usage.${part}`,
    unit: '{token}',
    help: `Tokens that vendors reported for model calls: ${part}`,
    attributes: [...CALL, 'gen_ai.token.modality'],
  }),
}))

export const genAiMetrics = [...durations, ...firstChunks, tokenUsage, ...usageCounters.map(({ tokens }) => tokens)]

export const imageConversions = new Counter({
  name: 'muster_image_conversions_total',
  help: 'Images made fit for a vendor by outcome (converted, refused, failed, unavailable)',
  labelNames: ['outcome'],
  registers: [],
})

/** Records an image that was converted or could not be. */
export const countImage = (outcome: 'converted' | 'refused' | 'failed' | 'unavailable'): void =>
  imageConversions.inc({ outcome })

/**
 * Records the metrics of one attempt.
 * @param call.firstPieceMs milliseconds to the first chunk of a stream; null without one
 * @param call.usage tokens that the vendor reported; null without a report
 * @param call.failed class of the failure; null for an answered call
 */
export function countModelCall(
  { provider, project_id }: Pick<ProviderRow, 'provider' | 'project_id'>,
  name: string,
  call: {
    outcome: 'answered' | 'failed' | 'timed_out' | 'aborted'
    durationMs: number
    firstPieceMs: number | null
    usage: ModelUsage | null
    failed: string | null
  },
): void {
  const { outcome, durationMs, firstPieceMs, usage, failed } = call
  const model = modelLabels.of(provider, name, outcome === 'answered' ? project_id : 'known')
  modelCalls.inc({ provider, model, outcome })
  const labels = {
    gen_ai_operation_name: 'chat',
    gen_ai_provider_name: providerName(provider),
    gen_ai_request_model: model,
  }
  for (const each of durations)
    each.observe({ ...labels, ...(failed !== null && { error_type: failed }) }, durationMs / 1000)
  if (usage) countTokens(labels, usage)
  if (outcome !== 'answered') return
  modelCallDuration.observe({ provider, model }, durationMs / 1000)
  if (firstPieceMs === null) return
  modelFirstPiece.observe({ provider, model }, firstPieceMs / 1000)
  for (const each of firstChunks) each.observe(labels, firstPieceMs / 1000)
}

/** Input tokens of the conventions, which include tokens of the cache. */
export function inputTokens({ input_tokens, cached_tokens, cache_write_tokens }: ModelUsage): number {
  return input_tokens + cached_tokens + cache_write_tokens
}

function countTokens(
  labels: Record<'gen_ai_operation_name' | 'gen_ai_provider_name' | 'gen_ai_request_model', string>,
  usage: ModelUsage,
): void {
  tokenUsage.observe({ ...labels, gen_ai_token_type: 'input' }, inputTokens(usage))
  tokenUsage.observe({ ...labels, gen_ai_token_type: 'output' }, usage.output_tokens)
  for (const { of, tokens } of usageCounters)
    if (of(usage) > 0) tokens.inc({ ...labels, gen_ai_token_modality: 'unknown' }, of(usage))
}
