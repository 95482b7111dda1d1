import { setImmediate } from 'node:timers/promises'
import { AppError, type RecordedFailure, raise } from '../../core/api/errors.ts'
import { ExpressionError, evaluate } from '../../core/expressions/evaluate.ts'
import type { Services } from '../../core/process/services.ts'
import type { Callable, ToolCall } from './call-types.ts'
import { type PipelineStep, withToolDefaults } from './model.ts'
import { resolveSharedTools } from './resolve.ts'

/** Failures of a pipeline within a pipeline are told as they are. */
const UNWRAPPED = ['PIPELINE_STEP_FAILED', 'PIPELINE_DEPTH_EXCEEDED']

const outOfTime = () =>
  raise('TOOL_HTTP_ERROR', { message: 'The call took too long', meta: { tool_status_code: null, reason: 'timeout' } })

type CallTool = (services: Services, tool: Callable, call: ToolCall) => Promise<unknown>

/**
 * Makes the calls of a pipeline in their order; the first that fails ends it. All of them share the time and the room of
 * the outer call, its caller and its tool context.
 * @throws PIPELINE_STEP_FAILED with `meta { step_id, cause }`, PIPELINE_DEPTH_EXCEEDED
 */
export async function callPipeline(
  services: Services,
  { pipeline, project_id, consumer }: Callable,
  input: Record<string, unknown>,
  call: ToolCall,
  callTool: CallTool,
): Promise<unknown> {
  const { steps = [], output } = pipeline ?? {}
  const depth = call.limits.depth + 1
  const ids = steps.flatMap(({ tool_id }) => tool_id ?? [])
  const named = await resolveSharedTools(services.pool, project_id, ids)
  const results: Record<string, unknown> = Object.create(null)
  let last: unknown = null
  for (const [index, step] of steps.entries()) {
    const root = { input, steps: results }
    // Lets others have the process between two steps that take no time of their own.
    await setImmediate()
    try {
      if (performance.now() > call.limits.until) outOfTime()
      last = await callTool(services, toolOf(step, named, { project_id, consumer }), {
        ...call,
        action: step.action ?? null,
        input: evaluated(step.input ?? {}, root, call) as Record<string, unknown>,
        // Each step is a call of its own to its target.
        idempotencyKey: call.idempotencyKey && `${call.idempotencyKey}.${index}`,
        judged: call.judged === 'throughout' && call.judged,
        // The call that it is a step of has begun.
        begin: null,
        metering: call.metering && {
          ...call.metering,
          record: call.metering.record && `${call.metering.record}.${index}`,
        },
        limits: { ...call.limits, depth },
      })
    } catch (error) {
      throw failureOf(step.id as string, error)
    }
    results[step.id as string] = last
  }
  if (output === undefined) return last
  try {
    return evaluated(output, { input, steps: results }, call)
  } catch (error) {
    throw failureOf('output', error)
  }
}

/** The tool of a step, in the name of whoever calls the pipeline: a share of the pipeline is taken from once. */
function toolOf(
  { tool, tool_id }: PipelineStep,
  named: ReadonlyMap<string, Callable>,
  { project_id, consumer }: Pick<Callable, 'project_id' | 'consumer'>,
): Callable {
  const own = tool
    ? { ...withToolDefaults(tool), id: null, project_id, guardrail_ids: null }
    : named.get(tool_id as string)
  if (!own) return raise('TOOL_NOT_FOUND', { meta: { id: tool_id } })
  return consumer && !own.consumer ? { ...own, consumer: { ...consumer, share: null } } : own
}

function evaluated(expression: unknown, root: object, { limits }: ToolCall): unknown {
  try {
    return evaluate(expression, root, limits.room.expressions)
  } catch (error) {
    if (!(error instanceof ExpressionError)) throw error
    return raise('VALIDATION_FAILED', { message: `An expression of the pipeline ${error.message}` })
  }
}

function failureOf(step_id: string, error: unknown): unknown {
  if (!(error instanceof AppError)) return error
  if (UNWRAPPED.includes(error.code)) return error
  const cause: RecordedFailure = error.recorded()
  return new AppError('PIPELINE_STEP_FAILED', {
    message: `Step ${step_id} failed: ${error.message}`,
    meta: { step_id, cause },
    cause: error,
  })
}
