import { Counter, Histogram } from 'prom-client'
import { modelLabels } from '#core/base/label-values.ts'
import type { ProviderRow } from './model.ts'

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
 */
export function countModelCall(
  { provider, project_id }: Pick<ProviderRow, 'provider' | 'project_id'>,
  name: string,
  call: {
    outcome: 'answered' | 'failed' | 'timed_out' | 'aborted'
    durationMs: number
    firstPieceMs: number | null
  },
): void {
  const { outcome, durationMs, firstPieceMs } = call
  const model = modelLabels.of(provider, name, outcome === 'answered' ? project_id : 'known')
  modelCalls.inc({ provider, model, outcome })
  if (outcome !== 'answered') return
  modelCallDuration.observe({ provider, model }, durationMs / 1000)
  if (firstPieceMs !== null) modelFirstPiece.observe({ provider, model }, firstPieceMs / 1000)
}
