import type { Finding, OrchestrationEdge, OrchestrationNode } from '@muster/client'
import type { GraphEdge, GraphNode } from './graph.tsx'
import type { Mark } from './marks.tsx'
import type { Definition } from './run-state.ts'

/** The problems and warnings of a validator. */
export type Findings = { problems: Finding[]; warnings: Finding[] }

const NO_FINDINGS: Findings = { problems: [], warnings: [] }

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null

/** Returns what a definition has that can be drawn: nodes with different ids, and edges with ends. */
function drawable({ nodes, edges }: Partial<Definition>) {
  const seen = new Set<string>()
  const isNew = (node: unknown): node is OrchestrationNode =>
    isObject(node) && typeof node.id === 'string' && node.id !== '' && !seen.has(node.id) && Boolean(seen.add(node.id))
  const hasEnds = (edge: unknown): edge is OrchestrationEdge =>
    isObject(edge) && typeof edge.from === 'string' && typeof edge.to === 'string'
  // Paths of findings count all entries, also those that cannot be drawn.
  return {
    nodes: (Array.isArray(nodes) ? nodes : [])
      .map((node, index) => ({ node, index }))
      .filter(({ node }) => isNew(node)),
    edges: (Array.isArray(edges) ? edges : [])
      .map((edge, index) => ({ edge, index }))
      .filter(({ edge }) => hasEnds(edge)),
  }
}

/** Whether a finding is about an entry of a list of the definition. */
const isAt = (list: 'nodes' | 'edges', index: number, { path }: Finding) =>
  path === `${list}[${index}]` || path.startsWith(`${list}[${index}].`)

/** Returns the id of the node that a finding is about. */
export function nodeOf({ path }: Finding, { nodes }: Partial<Definition>): string | undefined {
  const index = /^nodes\[(\d+)]/.exec(path)?.[1]
  const id = index === undefined ? undefined : nodes?.[Number(index)]?.id
  return typeof id === 'string' ? id : undefined
}

/** Returns the drawing of a definition, with the findings of the validator at their nodes and edges. */
export function definitionGraph(
  definition: Partial<Definition>,
  { problems, warnings }: Findings = NO_FINDINGS,
): { nodes: GraphNode[]; edges: GraphEdge[] } {
  const { nodes, edges } = drawable(definition)
  const found = (list: 'nodes' | 'edges', index: number): { mark?: Mark; detail?: string } => {
    const problem = problems.find(each => isAt(list, index, each))
    const finding = problem ?? warnings.find(each => isAt(list, index, each))
    return finding ? { mark: problem ? 'problem' : 'warning', detail: finding.message } : {}
  }
  return {
    nodes: nodes.map(({ node: { id, type }, index }) => ({ id, type: String(type ?? ''), ...found('nodes', index) })),
    edges: edges.map(({ edge: { from, to, condition }, index }) => ({
      from,
      to,
      label: condition ?? undefined,
      mark: found('edges', index).mark,
    })),
  }
}

/** Compares two values but for `metadata`, which has no effect. */
const isEqual = (one: { metadata?: unknown }, other: { metadata?: unknown }): boolean =>
  JSON.stringify({ ...one, metadata: undefined }) === JSON.stringify({ ...other, metadata: undefined })

/** Returns the drawing of two versions in one: additions, removals and changes between them. */
export function comparedGraph(before: Definition, after: Definition): { nodes: GraphNode[]; edges: GraphEdge[] } {
  const merge = <Entry extends { metadata?: unknown }>(
    list: (of: Definition) => Entry[],
    key: (entry: Entry) => string,
  ) => {
    const old = new Map(list(before).map(entry => [key(entry), entry]))
    const now = new Map(list(after).map(entry => [key(entry), entry]))
    return [...new Map([...old, ...now])].map(([name, entry]) => {
      const was = old.get(name)
      const is = now.get(name)
      const mark: Mark | undefined = !was ? 'added' : !is ? 'removed' : isEqual(was, is) ? undefined : 'changed'
      return { entry, mark }
    })
  }
  return {
    nodes: merge(
      ({ nodes }) => nodes,
      ({ id }) => id,
    ).map(({ entry: { id, type }, mark }) => ({ id, type, mark, detail: type })),
    edges: merge(
      ({ edges }) => edges,
      ({ from, to, condition }) => JSON.stringify([from, to, condition ?? null]),
    ).map(({ entry: { from, to, condition }, mark }) => ({ from, to, label: condition ?? undefined, mark })),
  }
}
