import { isDeepStrictEqual } from 'node:util'
import { listAccessibleIds, requireReferencePermissions } from '#automation/orchestrations/definition/references.ts'
import { truncateProblems } from '#automation/orchestrations/definition/validate.ts'
import type { Context } from '#core/api/operation.ts'
import { type Problem, problemsText, raise, raiseInvalid } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { truncateChars } from '#core/base/storable-text.ts'
import type { Queryable } from '#core/db/sql.ts'
import { lenientSchema, schemaChecks } from '#core/json-schema/checks.ts'
import { resolveSharedTools } from '#execution/tools/resolve.ts'
import type { WorkflowDefinition } from './definition.ts'
import { targetField } from './definition.ts'
import { type DispatchTarget, type UncheckedWorkflow, validateWorkflow } from './validate.ts'

/** Permission required to write a state that calls a tool. */
export const CALL_TOOL = 'tools:CallTool'

/**
 * Refuses a definition that is invalid, or that calls tools which the caller may not call, in the transaction that
 * writes it; reports all its problems. Permissions on agents, orchestrations and triggers are checked when a task
 * moves.
 * @param stored the previous definition: its states require no permissions again unless states or transitions change
 * @throws WORKFLOW_VALIDATION_FAILED with `meta.problems`, FORBIDDEN, SERVICE_NOT_READY
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
    ...(await schemaProblems(services, project, definition.payload_schema)),
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

/** Refuses an invalid definition, without its targets. @throws VALIDATION_FAILED */
export async function validateDefinition(services: Services, project: string, definition: UncheckedWorkflow) {
  const { problems } = validateWorkflow(definition)
  const found = [...problems, ...(await schemaProblems(services, project, definition.payload_schema))]
  if (found.length > 0) raiseInvalid(truncateProblems(found))
}

/** Returns the problem of an invalid payload schema. */
export async function schemaProblems(services: Services, project: string, schema: unknown): Promise<Problem[]> {
  if (!isObject(schema)) return []
  const [message] = await schemaChecks(services).refusals([lenientSchema(project, schema)])
  return message === null ? [] : [{ code: 'PAYLOAD_SCHEMA_INVALID', path: 'payload_schema', message }]
}

/**
 * Returns the problems of dispatch targets that the project neither owns nor has a share of, and of tools that cannot
 * be dispatched. One statement per kind.
 */
async function targetProblems(db: Queryable, project: string, targets: readonly DispatchTarget[]): Promise<Problem[]> {
  const problems: Problem[] = []
  const missing = ({ kind, id, path }: DispatchTarget) =>
    problems.push({
      code: 'DISPATCH_TARGET_NOT_FOUND',
      path: `${path}.${targetField(kind)}`,
      message: `does not exist in this project: ${truncateChars(id, 200)}`,
    })
  for (const [kind, targetsOfKind] of Map.groupBy(targets, target => target.kind)) {
    const ids = targetsOfKind.map(({ id }) => id)
    if (kind !== 'tool') {
      const existing = new Set(await listAccessibleIds(db, kind, project, ids))
      for (const target of targetsOfKind) if (!existing.has(target.id)) missing(target)
      continue
    }
    const tools = await resolveSharedTools(db, project, ids)
    for (const target of targetsOfKind) {
      const tool = tools.get(target.id)
      const refuse = (field: string, message: string) =>
        problems.push({ code: 'DISPATCH_TARGET_INVALID', path: `${target.path}.${field}`, message })
      if (!tool) missing(target)
      else if (tool.type === 'client') refuse('tool_id', 'refers to a client tool, which cannot be dispatched')
      else if ((tool.type === 'platform' || tool.type === 'mcp') && !target.operation_id)
        refuse('operation_id', `is required for a ${tool.type} tool`)
    }
  }
  return problems
}
