import { type Problem, problemsText, raise } from '../../core/api/errors.ts'
import type { Context } from '../../core/api/operation.ts'
import { isContextKey } from '../../core/api/tool-context.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { Services } from '../../core/process/services.ts'
import { type GraphDefinition, isSameGraph, type Node } from './definition.ts'
import { missingReferences, requireNodeRights } from './references.ts'
import { schemaProblems } from './schemas.ts'
import {
  type Findings,
  graphLimitProblems,
  MAX_FINDINGS,
  MAX_NODES,
  truncateProblems,
  validateGraph,
} from './validate.ts'

/** Entries of context_keys that are no keys, by the places of their nodes. */
const badContextKeys = (nodes: readonly Node[]): [index: number, keys: unknown[]][] =>
  nodes.flatMap(({ type, context_keys }, index): [number, unknown[]][] => {
    if ((type !== 'loop' && type !== 'sub_orchestration') || !Array.isArray(context_keys)) return []
    const bad = context_keys.filter(key => !isContextKey(key))
    return bad.length > 0 ? [[index, bad]] : []
  })

/** The same as problems, for where nothing is raised. */
export const contextKeyProblems = (nodes: readonly Node[]): Problem[] =>
  badContextKeys(nodes.slice(0, MAX_NODES)).map(([index]) => ({
    code: 'INVALID_TOOL_CONTEXT_KEY',
    path: `nodes[${index}].context_keys`,
    message: 'holds what is no key',
  }))

type Asking = Parameters<typeof schemaProblems>[2]

/**
 * What is wrong with a definition, its schemas included, and what may be a mistake.
 * @throws RunFirst within a transaction, SERVICE_NOT_READY
 */
export async function checkGraph(services: Services, definition: GraphDefinition, asking: Asking): Promise<Findings> {
  const { problems, warnings } = validateGraph(definition)
  if (graphLimitProblems(definition).length > 0) return { problems, warnings }
  return {
    problems: truncateProblems([...problems, ...(await schemaProblems(services, definition, asking))]),
    warnings,
  }
}

/** Warnings with what a project does not have of what a definition names: of one within the limits, and no more than are listed. */
export async function withMissingReferences(
  db: Queryable,
  project: string,
  definition: GraphDefinition,
  warnings: readonly Problem[],
): Promise<Problem[]> {
  if (graphLimitProblems(definition).length > 0) return [...warnings]
  return [...warnings, ...(await missingReferences(db, project, definition.nodes))].slice(0, MAX_FINDINGS)
}

const WITHOUT_SCHEMAS = { state_schema: null, input_schema: null }

/**
 * Refuses a definition that cannot be written, or has done what the caller may not do, in the transaction that writes it. What
 * it names may be missing; where it is refused it is told.
 * @param stored the graph before; its nodes ask for nothing as long as it runs as it did
 * @throws FORBIDDEN, INVALID_TOOL_CONTEXT_KEY, ORCHESTRATION_VALIDATION_FAILED with `meta { problems, warnings }`, RunFirst
 */
export async function requireValidGraph(
  { tx, services, allow }: Pick<Context, 'tx' | 'services' | 'allow'>,
  project: string,
  definition: GraphDefinition,
  stored?: Pick<GraphDefinition, 'nodes' | 'edges'>,
): Promise<void> {
  const [bad] = badContextKeys(definition.nodes)
  if (bad)
    raise('INVALID_TOOL_CONTEXT_KEY', {
      message: `nodes[${bad[0]}].context_keys holds what is no key`,
      meta: { keys: bad[1].slice(0, 20) },
    })
  const { problems, warnings } = await checkGraph(services, definition, { tenant: project, inTransaction: true })
  if (problems.length === 0) {
    const graph = ({ nodes, edges }: Pick<GraphDefinition, 'nodes' | 'edges'>) => ({ nodes, edges, ...WITHOUT_SCHEMAS })
    if (stored && isSameGraph(graph(stored), graph(definition))) return
    return requireNodeRights({ tx, allow }, project, definition.nodes)
  }
  raise('ORCHESTRATION_VALIDATION_FAILED', {
    message: problemsText(problems),
    meta: { problems, warnings: await withMissingReferences(tx, project, definition, warnings) },
  })
}
