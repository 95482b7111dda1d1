import { isDeepStrictEqual } from 'node:util'
import { type Problem, problemsText, raise } from '../../core/api/errors.ts'
import type { Context } from '../../core/api/operation.ts'
import { truncateChars } from '../../core/api/storable-text.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { isObject } from '../../core/expressions/evaluate.ts'
import { SchemaError, schemaChecks } from '../../core/json-schema/checks.ts'
import type { Services } from '../../core/process/services.ts'
import { resolveSharedTools } from '../../execution/tools/resolve.ts'
import { accessibleIds, requireReferencePermissions } from '../orchestrations/references.ts'
import { graphSchema } from '../orchestrations/schemas.ts'
import { truncateProblems } from '../orchestrations/validate.ts'
import type { WorkflowDefinition } from './definition.ts'
import { targetField } from './definition.ts'
import { type DispatchTarget, type UncheckedWorkflow, validateWorkflow } from './validate.ts'

/** What writing a state that calls a tool needs on it. */
export const CALL_TOOL = 'tools:CallTool'

/**
 * Refuses a definition that cannot be written, in the transaction that writes it, with everything that is wrong with it, and
 * one that has tools called which the caller may not call. Agents, orchestrations and triggers ask whoever moves the task.
 * @param stored the definition before; its states ask for nothing as long as they and its transitions stay
 * @throws WORKFLOW_VALIDATION_FAILED with `meta.problems`, FORBIDDEN, RunFirst, SERVICE_NOT_READY
 */
export async function requireValidWorkflow(
  { tx, services, allow }: Pick<Context, 'tx' | 'services' | 'allow'>,
  project: string,
  definition: UncheckedWorkflow | WorkflowDefinition,
  stored?: Pick<WorkflowDefinition, 'states' | 'transitions'>,
): Promise<void> {
  const { problems, targets } = validateWorkflow(definition)
  const found = [
    ...problems,
    ...(await targetProblems(tx, project, targets)),
    ...(await schemaProblem(services, project, definition.payload_schema)),
  ]
  if (found.length > 0)
    raise('WORKFLOW_VALIDATION_FAILED', { message: problemsText(found), meta: { problems: truncateProblems(found) } })
  const structureOf = ({ states, transitions }: Pick<UncheckedWorkflow, 'states' | 'transitions'>) => [
    states,
    transitions,
  ]
  if (stored && isDeepStrictEqual(structureOf(stored), structureOf(definition))) return
  await requireReferencePermissions(
    { tx, allow },
    project,
    targets.filter(({ kind }) => kind === 'tool'),
  )
}

async function schemaProblem(services: Services, project: string, schema: unknown): Promise<Problem[]> {
  if (!isObject(schema)) return []
  try {
    await schemaChecks(services).checkInTransaction(graphSchema(project, schema))
    return []
  } catch (error) {
    if (!(error instanceof SchemaError)) throw error
    return [{ code: 'PAYLOAD_SCHEMA_INVALID', path: 'payload_schema', message: error.message }]
  }
}

/** What dispatches name that the project does not have, and tools that nothing can call: one statement for each kind. */
async function targetProblems(db: Queryable, project: string, targets: readonly DispatchTarget[]): Promise<Problem[]> {
  const problems: Problem[] = []
  const missing = ({ kind, id, path }: DispatchTarget) =>
    problems.push({
      code: 'DISPATCH_TARGET_NOT_FOUND',
      path: `${path}.${targetField(kind)}`,
      message: `names no ${kind} of the project: ${truncateChars(id, 200)}`,
    })
  for (const [kind, named] of Map.groupBy(targets, target => target.kind)) {
    const ids = named.map(({ id }) => id)
    if (kind !== 'tool') {
      const there = new Set(await accessibleIds(db, kind, project, ids))
      for (const target of named) if (!there.has(target.id)) missing(target)
      continue
    }
    const tools = await resolveSharedTools(db, project, ids)
    for (const target of named) {
      const tool = tools.get(target.id)
      const refuse = (field: string, message: string) =>
        problems.push({ code: 'DISPATCH_TARGET_INVALID', path: `${target.path}.${field}`, message })
      if (!tool) missing(target)
      else if (tool.type === 'client') refuse('tool_id', 'names a tool that clients call')
      else if ((tool.type === 'platform' || tool.type === 'mcp') && !target.operation_id)
        refuse('operation_id', `is required for a ${tool.type} tool`)
    }
  }
  return problems
}
