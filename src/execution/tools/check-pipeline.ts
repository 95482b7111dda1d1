import { isDeepStrictEqual } from 'node:util'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { expressionProblem, isReservedName } from '#core/expressions/evaluate.ts'
import { pathsOf } from '#core/expressions/references.ts'
import { checkDefinition, type DefinitionCheck } from './check-definition.ts'
import { type Pipeline, type PipelineStep, toolKind, withToolDefaults } from './model.ts'
import { resolveSharedTools } from './resolve.ts'

const MAX_STEPS = 50
const MAX_BYTES = 256 * 1024
const STEP_ID = /^[A-Za-z0-9_]{1,64}$/

/** Returns the ids of the tools in the steps of a pipeline without duplicates; null for none. */
export function stepToolIds(pipeline: Pipeline | null): string[] | null {
  const ids = new Set((pipeline?.steps ?? []).flatMap(({ tool_id }) => tool_id ?? []))
  return ids.size > 0 ? [...ids] : null
}

function refuse(message: string, meta: Record<string, unknown> = {}): never {
  return raise('PIPELINE_INVALID_STEP', { message, meta })
}

/**
 * Validates the steps of a pipeline. Writing one must not give access to tools that the caller may not call, so a
 * changed pipeline requires permission for each tool of its steps. Tools may be deleted later; the pipeline then fails
 * when called.
 * @param stored previous pipeline
 * @throws FORBIDDEN, VALIDATION_FAILED for more than 256 KiB, PIPELINE_INVALID_STEP with `meta.step_id`, and the errors
 *   of inline definitions
 */
export async function checkPipeline(
  checking: DefinitionCheck,
  pipeline: Pipeline,
  stored: Pipeline | null,
): Promise<void> {
  checkSteps(pipeline)
  const { steps = [] } = pipeline
  await checkStepTools(checking, steps)
  if (!isDeepStrictEqual(stored, pipeline)) requireStepPermissions(checking, steps)
  await checkStepDefinitions(checking, steps)
}

/** Validates the inline tools of steps. */
async function checkStepDefinitions(
  checking: Parameters<typeof checkDefinition>[0],
  steps: readonly PipelineStep[],
): Promise<void> {
  for (const [index, { tool }] of steps.entries())
    if (tool) await checkDefinition(checking, withToolDefaults(tool), `pipeline.steps[${index}].tool.`)
}

/** Validates a pipeline without the tools that its steps refer to. @throws the errors of checkPipeline */
export async function validatePipeline(
  checking: Parameters<typeof checkDefinition>[0],
  pipeline: Pipeline,
): Promise<void> {
  checkSteps(pipeline)
  await checkStepDefinitions(checking, pipeline.steps ?? [])
}

function checkSteps(pipeline: Pipeline): void {
  const { steps = [], output } = pipeline
  if (Buffer.byteLength(JSON.stringify(pipeline)) > MAX_BYTES)
    raiseInvalid({ code: 'TOO_BIG', path: 'pipeline', message: 'must be at most 256 KiB' })
  if (steps.length === 0) refuse('pipeline.steps: a pipeline needs at least one step')
  if (steps.length > MAX_STEPS) refuse(`pipeline.steps: a pipeline has at most ${MAX_STEPS} steps`)
  const earlier = new Set<string>()
  for (const [index, step] of steps.entries()) {
    const { id } = step
    const at = `pipeline.steps[${index}]`
    if (id === undefined || !STEP_ID.test(id))
      refuse(`${at}.id: must be 1 to 64 letters, digits and underscores`, { step_id: id ?? null })
    if (isReservedName(id)) refuse(`${at}.id: ${id} is a reserved name`, { step_id: id })
    if (earlier.has(id)) refuse(`${at}.id: is a duplicate`, { step_id: id })
    if ((step.tool_id == null) === (step.tool == null))
      refuse(`${at}: exactly one of tool_id and tool must be set`, { step_id: id })
    checkExpression(step.input ?? {}, `${at}.input`, earlier, id)
    earlier.add(id)
  }
  if (output !== undefined) checkExpression(output, 'pipeline.output', earlier)
}

/** Refuses an expression that is too large or that reads the result of a step that is not earlier. */
function checkExpression(expression: unknown, at: string, earlier: ReadonlySet<string>, step_id?: string): void {
  const meta = step_id === undefined ? {} : { step_id }
  const expressionError = expressionProblem(expression)
  if (expressionError) refuse(`${at}: ${expressionError}`, meta)
  for (const path of pathsOf(expression)) {
    const [root, reference] = path.split('.')
    if (root === 'steps' && reference !== undefined && !earlier.has(reference))
      refuse(`${at}: reads the result of ${reference}, which is not an earlier step`, meta)
  }
}

function requireStepPermissions({ allow, project_id }: DefinitionCheck, steps: readonly PipelineStep[]): void {
  for (const id of stepToolIds({ steps: [...steps] }) ?? [])
    allow('tools:CallTool', { kind: toolKind, row: { id, project_id } })
}

async function checkStepTools({ tx, project_id }: DefinitionCheck, steps: readonly PipelineStep[]): Promise<void> {
  const ids = steps.flatMap(({ tool_id }) => tool_id ?? [])
  if (ids.length === 0) return
  const tools = await resolveSharedTools(tx, project_id, ids, true)
  for (const { id, tool_id } of steps) {
    if (tool_id == null) continue
    const type = tools.get(tool_id)?.type
    const meta = { step_id: id, tool_id }
    if (type === undefined) refuse(`Tool ${tool_id} of step ${id} not found in this project`, meta)
    if (type === 'client') refuse(`Tool ${tool_id} of step ${id} is a client tool, which cannot be a step`, meta)
  }
}
