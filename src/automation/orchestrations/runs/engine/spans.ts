import type { Span, SpanStart } from '#core/base/telemetry.ts'
import { MUSTER } from '#core/base/telemetry-names.ts'
import type { RunRow } from '../model.ts'
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

/** Adds the outcome of an advance to its span. */
export function noteRun(span: Span, { status, error }: RunRow): void {
  span.set({ [MUSTER.outcome]: status })
  if (status === 'failed') span.fail(error?.code ?? 'INTERNAL_ERROR')
}

/** The span of a node execution in a worker. */
export const nodeSpan = (execution: ClaimedNode): SpanStart => ({
  name: `node ${execution.node_type}`,
  unit: true,
  requests: true,
  from: { context: execution.trace_context, at: execution.created_at },
  shared: { [MUSTER.project]: execution.project_id, [MUSTER.run]: execution.run_id },
  attributes: { [MUSTER.node]: execution.node_id, [MUSTER.attempt]: execution.attempt },
})
