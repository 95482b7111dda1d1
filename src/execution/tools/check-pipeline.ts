import { isDeepStrictEqual } from 'node:util'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { expressionProblem, isReservedName } from '../../core/expressions/evaluate.ts'
import { pathsOf } from '../../core/expressions/references.ts'
import { checkDefinition, type DefinitionCheck } from './check-definition.ts'
import { type Pipeline, type PipelineStep, toolKind, withToolDefaults } from './model.ts'
import { resolveSharedTools } from './resolve.ts'

const MAX_STEPS = 50
const MAX_BYTES = 256 * 1024
const STEP_ID = /^[A-Za-z0-9_]{1,64}$/

/** Tools that the steps of a pipeline name, each once; null for none. */
export function stepToolIds(pipeline: Pipeline | null): string[] | null {
  const ids = new Set((pipeline?.steps ?? []).flatMap(({ tool_id }) => tool_id ?? []))
  return ids.size > 0 ? [...ids] : null
}

function refuse(message: string, meta: Record<string, unknown> = {}): never {
  return raise('PIPELINE_INVALID_STEP', { message, meta })
}

/**
 * Validates the steps of a pipeline. Who writes one may not thereby have tools called that it may not call itself: each
 * that a step names is asked for, unless nothing has changed. Tools may be deleted later; the pipeline then fails when it is
 * called.
 * @param stored the pipeline so far
 * @throws FORBIDDEN, VALIDATION_FAILED for a size beyond 256 KiB, PIPELINE_INVALID_STEP with `meta.step_id`, and what is wrong with a definition of a step's own
 */
export async function checkPipeline(
  checking: DefinitionCheck,
  pipeline: Pipeline,
  stored: Pipeline | null,
): Promise<void> {
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
      return refuse(`${at}.id: must be 1 to 64 letters, digits and underscores`, { step_id: id ?? null })
    if (isReservedName(id)) return refuse(`${at}.id: expressions cannot read ${id}`, { step_id: id })
    if (earlier.has(id)) refuse(`${at}.id: is there twice`, { step_id: id })
    if ((step.tool_id == null) === (step.tool == null))
      refuse(`${at}: exactly one of tool_id and tool must be set`, { step_id: id })
    checkExpression(step.input ?? {}, `${at}.input`, earlier, id)
    earlier.add(id)
  }
  if (output !== undefined) checkExpression(output, 'pipeline.output', earlier)
  await checkNamed(checking, steps)
  if (!isDeepStrictEqual(stored, pipeline)) requireStepPermissions(checking, steps)
  for (const [index, { tool }] of steps.entries())
    if (tool) await checkDefinition(checking, withToolDefaults(tool), `pipeline.steps[${index}].tool.`)
}

/** Refuses an expression that is too large, or that reads a step which has not been made when it is evaluated. */
function checkExpression(expression: unknown, at: string, earlier: ReadonlySet<string>, step_id?: string): void {
  const meta = step_id === undefined ? {} : { step_id }
  const unusable = expressionProblem(expression)
  if (unusable) refuse(`${at}: ${unusable}`, meta)
  for (const path of pathsOf(expression)) {
    const [root, named] = path.split('.')
    if (root === 'steps' && named !== undefined && !earlier.has(named))
      refuse(`${at}: reads the result of ${named}, which is no earlier step`, meta)
  }
}

function requireStepPermissions({ allow, project_id }: DefinitionCheck, steps: readonly PipelineStep[]): void {
  for (const id of stepToolIds({ steps: [...steps] }) ?? [])
    allow('tools:CallTool', { kind: toolKind, row: { id, project_id } })
}

async function checkNamed({ tx, project_id }: DefinitionCheck, steps: readonly PipelineStep[]): Promise<void> {
  const ids = steps.flatMap(({ tool_id }) => tool_id ?? [])
  if (ids.length === 0) return
  const tools = await resolveSharedTools(tx, project_id, ids, true)
  for (const { id, tool_id } of steps) {
    if (tool_id == null) continue
    const type = tools.get(tool_id)?.type
    const meta = { step_id: id, tool_id }
    if (type === undefined) refuse('The tool of a step does not exist in the project', meta)
    if (type === 'client') refuse('A client tool cannot be a step', meta)
  }
}
