import type { Services } from '#core/base/services.ts'
import type { Span, SpanStart } from '#core/base/telemetry.ts'
import { MUSTER } from '#core/base/telemetry-names.ts'
import { addSpans, type SpanNote } from '#core/writes/span-outbox.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { RunRow } from '../model.ts'
import { nodeFailure } from './advance.ts'
import type { NodeEnd } from './node-execution.ts'
import type { ClaimedNode } from './node-execution-store.ts'

/** The span of an advance of a run. */
export const runSpan = (run: RunRow): SpanStart => ({
  name: `run ${run.orchestration_id}`,
  unit: true,
  // Work that follows an answer of a person begins a new trace.
  from: { context: run.trace_context, at: run.created_at, linked: run.status === 'awaiting_input' },
  shared: { [MUSTER.project]: run.project_id, [MUSTER.run]: run.id },
  attributes: { [MUSTER.version]: run.orchestration_version },
})

/** Adds the outcome of an advance to its span, and to the write `tx` what the target of the project gets of it. */
export function noteRun(span: Span, services: Services, tx: Tx, { status, error }: RunRow): void {
  const code = status === 'failed' ? (error?.code ?? 'INTERNAL_ERROR') : null
  span.set({ [MUSTER.outcome]: status })
  if (code) span.fail(code)
  addSpans(services, tx, {}, span.capture)
}

/** Returns what the target of the project gets of a node execution that ends. */
export const settledNode = ({ outcome }: NodeEnd): SpanNote =>
  'error' in outcome
    ? { attributes: { [MUSTER.outcome]: 'failed' }, error: nodeFailure(outcome.error).code }
    : { attributes: { [MUSTER.outcome]: 'completed' } }

/** The span of a node execution in a worker. */
export const nodeSpan = (execution: ClaimedNode): SpanStart => ({
  name: `node ${execution.node_type}`,
  unit: true,
  requests: true,
  from: { context: execution.trace_context, at: execution.created_at },
  shared: { [MUSTER.project]: execution.project_id, [MUSTER.run]: execution.run_id },
  attributes: { [MUSTER.node]: execution.node_id, [MUSTER.attempt]: execution.attempt },
})
