import { isSame } from '#core/api/compare.ts'
import type { Context } from '#core/api/operation.ts'
import { isContextKey } from '#core/api/tool-context.ts'
import { type Problem, problemsText, raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import { comparableGraph, type GraphDefinition, type Node } from './definition.ts'
import { missingReferences, requireNodePermissions } from './references.ts'
import { schemaProblems } from './schemas.ts'
import {
  type Findings,
  graphLimitProblems,
  MAX_FINDINGS,
  MAX_NODES,
  truncateProblems,
  validateGraph,
} from './validate.ts'

/** Returns the invalid context keys of nodes, by node index. */
const badContextKeys = (nodes: readonly Node[]): [index: number, keys: unknown[]][] =>
  nodes.flatMap(({ type, context_keys }, index): [number, unknown[]][] => {
    if ((type !== 'loop' && type !== 'sub_orchestration') || !Array.isArray(context_keys)) return []
    const bad = context_keys.filter(key => !isContextKey(key))
    return bad.length > 0 ? [[index, bad]] : []
  })

/** Returns the invalid context keys as problems, for callers that do not raise them. */
export const contextKeyProblems = (nodes: readonly Node[]): Problem[] =>
  badContextKeys(nodes.slice(0, MAX_NODES)).map(([index]) => ({
    code: 'INVALID_TOOL_CONTEXT_KEY',
    path: `nodes[${index}].context_keys`,
    message: 'contains an invalid context key',
  }))

/**
 * Validates a definition including its schemas; returns problems and warnings.
 * @throws SERVICE_NOT_READY
 */
export async function checkGraph(services: Services, definition: GraphDefinition, tenant: string): Promise<Findings> {
  const { problems, warnings } = validateGraph(definition)
  return {
    problems: truncateProblems([...problems, ...(await schemaProblems(services, definition, tenant))]),
    warnings,
  }
}

/**
 * Adds warnings for references that do not exist in a project, up to the limit of listed findings. Definitions above
 * the size limits are not checked.
 */
export async function withMissingReferences(
  db: Queryable,
  project: string,
  definition: GraphDefinition,
  warnings: readonly Problem[],
): Promise<Problem[]> {
  if (graphLimitProblems(definition).length > 0) return [...warnings]
  return [...warnings, ...(await missingReferences(db, project, definition.nodes))].slice(0, MAX_FINDINGS)
}

/** Raises INVALID_TOOL_CONTEXT_KEY for a node with an invalid context key. */
function refuseContextKeys({ nodes }: GraphDefinition): void {
  const [bad] = badContextKeys(nodes)
  if (bad)
    raise('INVALID_TOOL_CONTEXT_KEY', {
      message: `nodes[${bad[0]}].context_keys contains an invalid context key`,
      meta: { keys: bad[1].slice(0, 20) },
    })
}

/** Refuses an invalid definition, without its references. @throws INVALID_TOOL_CONTEXT_KEY, VALIDATION_FAILED */
export async function validateDefinition(services: Services, project: string, definition: GraphDefinition) {
  refuseContextKeys(definition)
  const { problems } = await checkGraph(services, definition, project)
  if (problems.length > 0) raiseInvalid(problems)
}

const WITHOUT_SCHEMAS = { state_schema: null, input_schema: null }

/**
 * Refuses a definition that is invalid or requires permissions which the caller lacks, in the transaction that
 * writes it. Missing references are warnings only.
 * @param stored the previous graph: its nodes require no permissions again unless the graph changes
 * @throws FORBIDDEN, INVALID_TOOL_CONTEXT_KEY, ORCHESTRATION_VALIDATION_FAILED with `meta { problems, warnings }`
 */
export async function requireValidGraph(
  { tx, services, allow }: Pick<Context, 'tx' | 'services' | 'allow'>,
  project: string,
  definition: GraphDefinition,
  stored?: Pick<GraphDefinition, 'nodes' | 'edges'>,
): Promise<void> {
  refuseContextKeys(definition)
  const { problems, warnings } = await checkGraph(services, definition, project)
  if (problems.length === 0) {
    const graph = ({ nodes, edges }: Pick<GraphDefinition, 'nodes' | 'edges'>) =>
      comparableGraph({ nodes, edges, ...WITHOUT_SCHEMAS })
    if (stored && isSame(graph(stored), graph(definition))) return
    return requireNodePermissions({ tx, allow }, project, definition.nodes)
  }
  raise('ORCHESTRATION_VALIDATION_FAILED', {
    message: problemsText(problems),
    meta: { problems, warnings: await withMissingReferences(tx, project, definition, warnings) },
  })
}
