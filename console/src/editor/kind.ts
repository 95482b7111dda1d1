import type { Choice } from '#choices.ts'
import type { Values } from '#components/schema-form.tsx'
import type { Findings } from '#graph/definition.ts'
import type { GraphEdge, GraphNode } from '#graph/graph.tsx'
import { isObject } from '#json.ts'
import type { Field } from './fields.ts'

/** What a palette offers: a kind of nodes with the node that it adds. */
export type PaletteEntry = { type: string; name: string; about: string; start: Values }

/** A value that expressions can read. */
export type Available = { name: string; about: string }

/** Names of records that fields refer to, by the field; undefined for those that the user may not list. */
export type Records = Record<string, Choice[] | undefined>

/** What distinguishes the editors of two kinds of graphs: nodes with edges, and states with transitions. */
export type GraphKind = {
  /** Lists of the definition. */
  lists: { nodes: string; edges: string }
  /** Field with the name of a node. */
  key: 'id' | 'name'
  palette: readonly PaletteEntry[]
  /** Fields of a definition that are edited as JSON. */
  fields: readonly string[]
  /** A definition that works without changes. */
  example: Values
  /** JSON Schema of a definition, for completion. */
  schema: Values
  /** Returns why a text is no name of a node; null for a valid one. */
  keyProblem(key: string): string | null
  /** Returns the first unused name of a new node. */
  newKey(start: Values, isUsed: (key: string) => boolean): string
  /** Returns the drawing; each edge has the index of its entry. */
  draw(definition: Values, findings?: Findings): { nodes: GraphNode[]; edges: GraphEdge[] }
  /** Returns the edge from one node to another, or why there is none. */
  connect(definition: Values, from: string, to: string): Values | string
  /** Returns the definition with another name of a node in expressions and rules. */
  renamed(definition: Values, before: string, after: string): Values
  nodeFields(definition: Values, node: Values): Field[]
  edgeFields(definition: Values, edge: Values): Field[]
  /** Returns the values that expressions of a field of a node or an edge can read. */
  available(definition: Values, part: Values, field: string): Available[]
  /** Returns the texts that a value of the definition may have, for completion. */
  texts(definition: Values, path: readonly (string | number)[], siblings: Values): Choice[] | undefined
  /** Returns the names of the fields of an object of the definition, where they depend on its values. */
  keys(path: readonly (string | number)[], siblings: Values): string[] | undefined
  /** Field with the name of an edge; null where edges have none. */
  edgeKey: 'name' | null
  /** Returns the definition with another name of an edge in rules. */
  renamedEdge?(definition: Values, before: string, after: string): Values
  /** Has a definition checked; null for an invalid text. `refusal` is the error of the last write. */
  useFindings(projectId: string, definition: Values | null, refusal: unknown): { findings: Findings; error?: unknown }
  /** Returns a definition after a change of a node: one value may exclude others. */
  settled?(definition: Values, name: string): Values
}

/** Returns the entries of a list of a definition. */
export const entriesOf = (definition: Values, list: string): Values[] => {
  const entries = definition[list]
  return Array.isArray(entries) ? entries.filter(isObject) : []
}

/** Whether a value is a definition whose lists can be edited. */
export const isEditable = (kind: GraphKind, value: Values | null): value is Values =>
  value !== null && Object.values(kind.lists).every(list => value[list] === undefined || Array.isArray(value[list]))

/** Returns the sources of an edge. */
export const sourcesOf = ({ from }: Values): string[] =>
  (Array.isArray(from) ? from : [from]).filter(each => typeof each === 'string')

const listOf = (definition: Values, list: string): unknown[] =>
  Array.isArray(definition[list]) ? (definition[list] as unknown[]) : []

/** Returns a definition with another list, entry by entry; a function that returns an empty array removes the entry. */
function withEntries(definition: Values, list: string, change: (entry: Values, index: number) => Values[]): Values {
  const entries = listOf(definition, list).flatMap((entry, index) => (isObject(entry) ? change(entry, index) : [entry]))
  return { ...definition, [list]: entries }
}

/** Returns the node of a name. */
export const nodeOfKey = ({ lists, key }: GraphKind, definition: Values, name: string): Values | undefined =>
  entriesOf(definition, lists.nodes).find(node => node[key] === name)

/** Returns the names of the nodes. */
export const keysOf = ({ lists, key }: Pick<GraphKind, 'lists' | 'key'>, definition: Values): string[] =>
  entriesOf(definition, lists.nodes)
    .map(node => node[key])
    .filter(each => typeof each === 'string')

/** Adds a node of the palette with an unused name, and an edge to it. */
export function addNode(
  kind: GraphKind,
  definition: Values,
  { start }: PaletteEntry,
  after: string | null,
): { definition: Values; key: string } {
  const used = new Set(keysOf(kind, definition))
  const key = kind.newKey(start, name => used.has(name))
  const nodes = [...listOf(definition, kind.lists.nodes), { [kind.key]: key, ...start }]
  const added = { ...definition, [kind.lists.nodes]: nodes }
  const edge = after === null ? '' : kind.connect(added, after, key)
  return { key, definition: typeof edge === 'string' ? added : addEdge(kind, added, edge) }
}

/** Adds an edge to the end of the list. */
export const addEdge = ({ lists: { edges } }: GraphKind, definition: Values, edge: Values): Values => ({
  ...definition,
  [edges]: [...listOf(definition, edges), edge],
})

/** Replaces a node. */
export const setNode = ({ lists, key }: GraphKind, definition: Values, name: string, node: Values): Values =>
  withEntries(definition, lists.nodes, entry => [entry[key] === name ? node : entry])

/** Replaces an edge; without a replacement it is removed. */
export const setEdge = ({ lists }: GraphKind, definition: Values, at: number, edge: Values | null): Values =>
  withEntries(definition, lists.edges, (entry, index) => (index !== at ? [entry] : edge ? [edge] : []))

/** Returns an edge whose ends have other names; null if one of them has none. */
function withEnds(edge: Values, nameOf: (name: string) => string | null): Values[] {
  const { from, to } = edge
  const target = typeof to === 'string' ? nameOf(to) : to
  const sources = Array.isArray(from)
    ? from.map(each => (typeof each === 'string' ? nameOf(each) : each)).filter(each => each !== null)
    : typeof from === 'string'
      ? nameOf(from)
      : from
  const isLost = target === null || sources === null || (Array.isArray(sources) && sources.length === 0)
  return isLost ? [] : [{ ...edge, from: sources, to: target }]
}

/** Removes a node with the edges that have no other end. */
export function removeNode(kind: GraphKind, definition: Values, name: string): Values {
  const { nodes, edges } = kind.lists
  const kept = withEntries(definition, nodes, entry => (entry[kind.key] === name ? [] : [entry]))
  return withEntries(kept, edges, edge => withEnds(edge, each => (each === name ? null : each)))
}

/** Gives a node another name, at the ends of edges and in expressions too. */
export function renameNode(kind: GraphKind, definition: Values, before: string, after: string): Values {
  const { nodes, edges } = kind.lists
  const named = withEntries(definition, nodes, entry => [
    entry[kind.key] === before ? { ...entry, [kind.key]: after } : entry,
  ])
  const ends = withEntries(named, edges, edge => withEnds(edge, each => (each === before ? after : each)))
  return kind.renamed(ends, before, after)
}

/** Returns the shortest way along edges from one node to another; null without one. */
export function wayBetween(edges: Values[], from: string, to: string): string[] | null {
  const before = new Map<string, string | null>([[from, null]])
  const next = new Map<string, string[]>()
  for (const edge of edges)
    for (const source of sourcesOf(edge)) next.set(source, [...(next.get(source) ?? []), String(edge.to)])
  for (const current of before.keys()) {
    if (current === to) break
    for (const target of next.get(current) ?? []) if (!before.has(target)) before.set(target, current)
  }
  if (!before.has(to)) return null
  const way = [to]
  for (let each = before.get(to); each != null; each = before.get(each)) way.unshift(each)
  return way
}

/** Returns the nodes from which edges lead to a node, directly or not. */
export function upstreamOf(edges: Values[], name: string): Set<string> {
  const found = new Set<string>()
  const targets = new Set([name])
  const sources = new Map<string, string[]>()
  for (const edge of edges) sources.set(String(edge.to), [...(sources.get(String(edge.to)) ?? []), ...sourcesOf(edge)])
  for (const target of targets)
    for (const source of sources.get(target) ?? []) {
      found.add(source)
      targets.add(source)
    }
  return found
}
