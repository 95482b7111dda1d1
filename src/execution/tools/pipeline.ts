import { setImmediate } from 'node:timers/promises'
import { AppError, type RecordedFailure, raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { ExpressionError } from '#core/expressions/evaluate.ts'
import { evaluate } from '#core/expressions/evaluation.ts'
import { type Callable, callingProject, type ToolCall } from './call-types.ts'
import { type PipelineStep, withToolDefaults } from './model.ts'
import { resolveSharedTools } from './resolve.ts'

/** Failures of nested pipelines that are passed on unchanged. */
const UNWRAPPED = ['PIPELINE_STEP_FAILED', 'PIPELINE_DEPTH_EXCEEDED']

const raiseTimeout = () =>
  raise('TOOL_HTTP_ERROR', { message: 'The call timed out', meta: { tool_status_code: null, reason: 'timeout' } })

type CallTool = (services: Services, tool: Callable, call: ToolCall) => Promise<unknown>

/**
 * Makes the calls of a pipeline in order; the first failure ends it. The calls share the limits of the outer call, its
 * caller and its tool context.
 * @throws PIPELINE_STEP_FAILED with `meta { step_id, cause }`, PIPELINE_DEPTH_EXCEEDED
 */
export async function callPipeline(
  services: Services,
  tool: Callable,
  input: Record<string, unknown>,
  call: ToolCall,
  callTool: CallTool,
): Promise<unknown> {
  const { project_id, consumer } = tool
  const { steps = [], output } = tool.pipeline ?? {}
  const depth = call.limits.depth + 1
  const ids = steps.flatMap(({ tool_id }) => tool_id ?? [])
  const toolsById = await resolveSharedTools(services.pool, project_id, ids)
  const results: Record<string, unknown> = Object.create(null)
  const evaluateInPipeline = (expression: unknown, root: object) =>
    evaluate(services, callingProject(tool), expression, root, { spent: call.limits.room.expressions }).catch(
      raiseExpressionError,
    )
  let last: unknown = null
  for (const [index, step] of steps.entries()) {
    const root = { input, steps: results }
    // Yields to the event loop between steps that do not wait.
    await setImmediate()
    try {
      if (performance.now() > call.limits.until) raiseTimeout()
      last = await callTool(services, stepTool(step, toolsById, { project_id, consumer }), {
        ...call,
        action: step.action ?? null,
        input: (await evaluateInPipeline(step.input ?? {}, root)) as Record<string, unknown>,
        // Each step has a separate key for its target.
        idempotencyKey: call.idempotencyKey && `${call.idempotencyKey}.${index}`,
        judged: call.judged === 'throughout' && call.judged,
        // The outer call has already recorded its intent.
        begin: null,
        metering: call.metering && {
          ...call.metering,
          record: call.metering.record && `${call.metering.record}.${index}`,
        },
        limits: { ...call.limits, depth },
      })
    } catch (error) {
      throw stepFailure(step.id as string, error)
    }
    results[step.id as string] = last
  }
  if (output === undefined) return last
  try {
    return await evaluateInPipeline(output, { input, steps: results })
  } catch (error) {
    throw stepFailure('output', error)
  }
}

/**
 * Returns the tool of a step, called by the consumer of the pipeline: the cap of a shared pipeline is consumed once.
 */
function stepTool(
  { tool, tool_id }: PipelineStep,
  toolsById: ReadonlyMap<string, Callable>,
  { project_id, consumer }: Pick<Callable, 'project_id' | 'consumer'>,
): Callable {
  const resolved = tool
    ? { ...withToolDefaults(tool), id: null, project_id, guardrail_ids: null }
    : toolsById.get(tool_id as string)
  if (!resolved) return raise('TOOL_NOT_FOUND', { meta: { id: tool_id } })
  return consumer && !resolved.consumer ? { ...resolved, consumer: { ...consumer, share: null } } : resolved
}

function raiseExpressionError(error: unknown): never {
  if (!(error instanceof ExpressionError)) throw error
  return raise('VALIDATION_FAILED', { message: `Pipeline expression ${error.message}` })
}

function stepFailure(step_id: string, error: unknown): unknown {
  if (!(error instanceof AppError)) return error
  if (UNWRAPPED.includes(error.code)) return error
  const cause: RecordedFailure = error.recorded()
  return new AppError('PIPELINE_STEP_FAILED', {
    message: `Step ${step_id} failed: ${error.message}`,
    meta: { step_id, cause },
    cause: error,
  })
}
