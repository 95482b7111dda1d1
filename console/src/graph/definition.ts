import type { Finding } from '@muster/client'
import type { Values } from '#components/schema-form.tsx'
import { isObject } from '#json.ts'
import type { GraphEdge, GraphNode } from './graph.tsx'
import type { Mark } from './marks.tsx'
import type { Definition } from './run-state.ts'

/** The problems and warnings of a validator. */
export type Findings = { problems: Finding[]; warnings: Finding[] }

export const NO_FINDINGS: Findings = { problems: [], warnings: [] }

/** Returns the entries of a list that can be drawn, with their places: paths of findings count all entries. */
export function drawable(list: unknown, canDraw: (entry: Values) => boolean): { entry: Values; index: number }[] {
  return (Array.isArray(list) ? list : [])
    .map((entry, index) => ({ entry, index }))
    .filter(({ entry }) => isObject(entry) && canDraw(entry))
}

/** Accepts entries with a name that none before has. */
export function newNames(key: string): (entry: Values) => boolean {
  const seen = new Set<string>()
  return ({ [key]: name }) => typeof name === 'string' && name !== '' && !seen.has(name) && Boolean(seen.add(name))
}

/** Returns the finding about each entry of a list: a problem before warnings. */
export const findingsOf =
  (list: string, { problems, warnings }: Findings) =>
  (index: number): { mark?: Mark; detail?: string } => {
    const isAt = ({ path }: Finding) => path === `${list}[${index}]` || path.startsWith(`${list}[${index}].`)
    const problem = problems.find(isAt)
    const finding = problem ?? warnings.find(isAt)
    return finding ? { mark: problem ? 'problem' : 'warning', detail: finding.message } : {}
  }

/** Returns the place in a list that a finding is about. */
export const placeOf = ({ path }: Finding, list: string): number | undefined => {
  const index = path.startsWith(`${list}[`) ? Number.parseInt(path.slice(list.length + 1), 10) : Number.NaN
  return Number.isNaN(index) ? undefined : index
}

/** Returns the id of the node that a finding is about. */
export function nodeOf(finding: Finding, { nodes }: Partial<Definition>): string | undefined {
  const id = nodes?.[placeOf(finding, 'nodes') ?? -1]?.id
  return typeof id === 'string' ? id : undefined
}

/** Returns the drawing of a definition, with the findings of the validator at their nodes and edges. */
export function definitionGraph(
  definition: { nodes?: unknown; edges?: unknown },
  findings: Findings = NO_FINDINGS,
): { nodes: GraphNode[]; edges: GraphEdge[] } {
  const atNode = findingsOf('nodes', findings)
  const atEdge = findingsOf('edges', findings)
  return {
    nodes: drawable(definition.nodes, newNames('id')).map(({ entry: { id, type }, index }) => ({
      id: String(id),
      type: String(type ?? ''),
      ...atNode(index),
    })),
    edges: drawable(definition.edges, ({ from, to }) => typeof from === 'string' && typeof to === 'string').map(
      ({ entry: { from, to, condition }, index }) => ({
        from: String(from),
        to: String(to),
        label: typeof condition === 'string' ? condition : undefined,
        mark: atEdge(index).mark,
        index,
      }),
    ),
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
