import type { Problem } from '../../core/api/errors.ts'
import { truncateChars } from '../../core/api/storable-text.ts'
import { validationProblems } from '../../core/api/validate.ts'
import { expressionProblem, isObject, isReservedName } from '../../core/expressions/evaluate.ts'
import { type Edge, type GraphDefinition, NODE_TYPES, type Node } from './definition.ts'
import { EVENT_TYPE, namespaceOf, platformEvents } from './event-types.ts'
import {
  type ExpressionSite,
  expressionSites,
  readOfCollection,
  type StateRead,
  stateReads,
} from './expression-reads.ts'
import { edgeFields, type Field, nodeFields } from './fields.ts'
import { Flow } from './flow.ts'
import { cyclesOf, type Graph, graphOf } from './graph.ts'
import { statePath, statePathProblem } from './state-paths.ts'

export const MAX_NODES = 500
export const MAX_EDGES = 2000
export const MAX_GRAPH_BYTES = 1024 * 1024

/** Findings of a kind that are listed. */
export const MAX_FINDINGS = 1000

/** Problems as an answer lists them; where there are more, the last item says so. */
export const truncateProblems = (problems: readonly Problem[]): Problem[] =>
  problems.length <= MAX_FINDINGS
    ? [...problems]
    : [
        ...problems.slice(0, MAX_FINDINGS - 1),
        { code: 'LIMIT_EXCEEDED', path: '', message: 'has more problems than are listed' },
      ]

/** What a path and a message show of names that callers chose. */
const MAX_SHOWN = 200

const NODE_ID = /^[A-Za-z0-9_-]{1,128}$/

/** What is wrong with a graph, and what is odd about it. */
export type Findings = { problems: Problem[]; warnings: Problem[] }

/** A name that a caller chose, as a path or a message shows it. */
export const quoteName = (text: string): string =>
  text.length > MAX_SHOWN ? `${truncateChars(text, MAX_SHOWN)}…` : text

/** Findings as they are collected: of problems one more than `listed` keeps. */
export class FindingList implements Findings {
  readonly problems: Problem[] = []
  readonly warnings: Problem[] = []

  problem(code: string, path: string, message: string): void {
    if (this.problems.length <= MAX_FINDINGS) this.problems.push({ code, path, message })
  }

  warn(code: string, path: string, message: string): void {
    if (this.warnings.length < MAX_FINDINGS) this.warnings.push({ code, path, message })
  }
}

const isType = (type: unknown): boolean => NODE_TYPES.includes(type as never)

/**
 * Everything that is wrong with a definition, and what may be a mistake, at once. Whether its schemas compile and what it
 * names exists is found out elsewhere (schemas.ts, references.ts).
 */
export function validateGraph(definition: GraphDefinition): Findings {
  const beyond = graphLimitProblems(definition)
  if (beyond.length > 0) return { problems: beyond, warnings: [] }
  const found = new FindingList()
  const { nodes, edges } = definition
  const events = platformEvents()
  checkIds(nodes, found)
  const surfaces = new Map(nodes.map(node => [node, expressionSites(node)]))
  for (const [index, node] of nodes.entries()) {
    checkNode(node, `nodes[${index}]`, events, found)
    for (const surface of surfaces.get(node) ?? []) checkSurface(surface, `nodes[${index}]`, found)
  }
  const named = nodes.filter(({ id }) => typeof id === 'string' && id !== '')
  const dangling = checkEdges(edges, new Set(named.map(({ id }) => id)), found)
  checkGroups(edges, found)
  const graph = graphOf({ nodes: named, edges })
  checkStart(graph, found)
  const isCyclic = checkCycles(graph, named, edges, found)
  if (!dangling && !isCyclic && graph.sorted !== null) checkFlow(definition, graph as Sorted, surfaces, found)
  return found
}

/** Why a definition is larger than any may be; what else is wrong with such a one is not looked for. */
export function graphLimitProblems({ nodes, edges, state_schema, input_schema }: GraphDefinition): Problem[] {
  const bytes = Buffer.byteLength(JSON.stringify({ nodes, edges, state_schema, input_schema }))
  const counts: [path: string, what: string, has: number, most: number][] = [
    ['nodes', 'items', nodes.length, MAX_NODES],
    ['edges', 'items', edges.length, MAX_EDGES],
    ['', 'bytes as JSON', bytes, MAX_GRAPH_BYTES],
  ]
  return counts.flatMap(([path, what, has, most]) =>
    has > most ? [{ code: 'LIMIT_EXCEEDED', path, message: `must have at most ${most} ${what}, but has ${has}` }] : [],
  )
}

function checkIds(nodes: readonly Node[], found: FindingList): void {
  const first = new Map<unknown, number>()
  for (const [index, { id }] of nodes.entries()) {
    const path = `nodes[${index}].id`
    if (id == null || id === '') found.problem('NODE_ID_REQUIRED', path, 'is required')
    else if (typeof id !== 'string' || !NODE_ID.test(id))
      found.problem('NODE_ID_INVALID', path, 'must be 1 to 128 letters, digits, _ and -')
    else if (isReservedName(id))
      found.problem('NODE_ID_INVALID', path, `cannot be ${id}, which expressions cannot read`)
    else if (first.has(id)) found.problem('NODE_ID_DUPLICATE', path, `is the id of nodes[${first.get(id)}] too: ${id}`)
    else first.set(id, index)
  }
}

export const isMissing = (value: unknown): boolean => value === undefined || value === null || value === ''

function checkNode(node: Node, at: string, events: ReadonlySet<string>, found: FindingList): void {
  const { type } = node
  if (isMissing(type)) found.problem('NODE_TYPE_REQUIRED', `${at}.type`, 'is required')
  else if (typeof type !== 'string') found.problem('NODE_FIELD_INVALID', `${at}.type`, 'must be a string')
  else if (!isType(type))
    found.warn('NODE_TYPE_UNKNOWN', `${at}.type`, `is no type of this release; a run fails there: ${quoteName(type)}`)
  for (const [name, field] of nodeFields) {
    const value = (node as Record<string, unknown>)[name]
    const path = `${at}.${name}`
    if (field.types && !(field.types as readonly unknown[]).includes(type)) {
      if (value != null && isType(type)) found.warn('NODE_FIELD_UNUSED', path, `is not read by nodes of type ${type}`)
    } else if (field.required && isMissing(value))
      found.problem('NODE_FIELD_REQUIRED', path, `is required for nodes of type ${type}`)
    else if (value != null) checkField(field, value, path, found)
  }
  if (type === 'delay' && (node.duration == null) === (node.until == null))
    found.problem('NODE_FIELD_REQUIRED', `${at}.duration`, 'is required without until, and not allowed with it')
  if (type === 'poll' && typeof node.max_iterations === 'number' && node.max_iterations > 1000)
    found.problem('NODE_FIELD_INVALID', `${at}.max_iterations`, 'must be at most 1000 for nodes of type poll')
  if (type === 'loop' && typeof node.item_variable === 'string' && isReservedName(node.item_variable))
    found.problem('NODE_FIELD_INVALID', `${at}.item_variable`, 'cannot be read by expressions')
  if (type === 'emit_event') checkEvent(node.event_type, `${at}.event_type`, events, found)
}

function checkSurface(surface: ExpressionSite, at: string, found: FindingList): void {
  const { field, key, expression } = surface
  // What is no object or text is small.
  const isLarge = typeof expression === 'object' || typeof expression === 'string'
  const unusable = isLarge ? expressionProblem(expression) : null
  if (unusable) found.problem('NODE_FIELD_INVALID', pathOf(at, surface), unusable)
  const code = field === 'state_mapping' ? statePathProblem(key as string) : null
  if (code === 'STATE_PATH_INVALID')
    found.problem(code, pathOf(at, surface), 'is no path that can be written: up to 32 names with dots between them')
  else if (code) found.problem(code, pathOf(at, surface), 'writes what the engine keeps: input and nodes')
}

function checkField({ schema, code = 'NODE_FIELD_INVALID' }: Field, value: unknown, path: string, found: FindingList) {
  for (const problem of validationProblems(schema, value, path))
    found.problem(code, quoteName(problem.path), problem.message)
}

function checkEvent(name: unknown, path: string, events: ReadonlySet<string>, found: FindingList): void {
  if (typeof name !== 'string' || !EVENT_TYPE.test(name)) return
  if (events.has(name)) found.problem('EVENT_TYPE_RESERVED', path, `is an event of the platform: ${quoteName(name)}`)
  else if ([...events].some(event => namespaceOf(event) === namespaceOf(name)))
    found.warn('EVENT_NOT_TRIGGERABLE', path, `lies among the platform's own events: no trigger can name it`)
}

/** Returns whether an edge has an end that is no node. */
function checkEdges(edges: readonly Edge[], ids: ReadonlySet<string>, found: FindingList): boolean {
  let dangling = false
  for (const [index, edge] of edges.entries()) {
    const at = `edges[${index}]`
    for (const end of ['from', 'to'] as const) {
      const id: unknown = edge[end]
      if (typeof id === 'string' && ids.has(id)) continue
      dangling = true
      if (typeof id === 'string') found.problem('EDGE_NODE_UNKNOWN', `${at}.${end}`, `names no node: ${quoteName(id)}`)
      else found.problem('EDGE_FIELD_INVALID', `${at}.${end}`, isMissing(id) ? 'is required' : 'must be a string')
    }
    for (const [name, field] of edgeFields) {
      const value = (edge as Record<string, unknown>)[name]
      if (value != null) checkField({ ...field, code: 'EDGE_FIELD_INVALID' }, value, `${at}.${name}`, found)
    }
  }
  return dangling
}

/** The edges of a group agree on when it activates its node. */
function checkGroups(edges: readonly Edge[], found: FindingList): void {
  const first = new Map<string, unknown>()
  for (const [index, { to, activation_group, activation_condition }] of edges.entries()) {
    const path = `edges[${index}].activation_condition`
    if (activation_group == null) {
      if (activation_condition != null)
        found.problem('EDGE_FIELD_INVALID', path, 'is for edges with an activation_group')
      continue
    }
    const group = JSON.stringify([to, activation_group])
    const condition = activation_condition ?? 'all'
    if (!first.has(group)) first.set(group, condition)
    else if (first.get(group) !== condition)
      found.problem('EDGE_FIELD_INVALID', path, 'differs from that of another edge of the group; without one it is all')
  }
}

function checkStart({ nodes, starts }: Graph, found: FindingList): void {
  if (nodes.length > 0 && starts.length === 0)
    found.problem('NO_START_NODE', 'nodes', 'have no one without incoming edges: a run has nothing to begin with')
}

/** Returns whether there is a cycle that no `loop` is on. */
function checkCycles(graph: Graph, nodes: readonly Node[], edges: readonly Edge[], found: FindingList): boolean {
  const cycles = cyclesOf({ nodes: nodes.filter(({ type }) => type !== 'loop'), edges })
  for (const ids of cycles) {
    const listed = ids.slice(0, 20).map(quoteName).join(', ')
    found.problem('CYCLE_DETECTED', 'edges', `lead in a circle: ${listed}${ids.length > 20 ? ', …' : ''}`)
  }
  if (cycles.length === 0 && graph.back.size > 0)
    for (const [index, edge] of edges.entries())
      if (graph.back.has(edge))
        found.warn(
          'LOOP_REENTRY',
          `edges[${index}]`,
          `leads back to ${quoteName(edge.to)}; it never activates anything`,
        )
  return cycles.length > 0
}

const pathOf = (at: string, { field, key }: Pick<ExpressionSite, 'field' | 'key'>): string =>
  key === null ? `${at}.${field}` : `${at}.${field}.${quoteName(key)}`

/** What depends on the ways through the graph. */
function checkFlow(
  { nodes, edges, input_schema }: GraphDefinition,
  graph: Sorted,
  surfaces: ReadonlyMap<Node, readonly ExpressionSite[]>,
  found: FindingList,
): void {
  const surfacesIn = (node: Node) => surfaces.get(node) ?? []
  const flow = new Flow(graph, new Map(graph.nodes.map(node => [node.id, surfacesIn(node).flatMap(keyWritten)])))
  const declared = (input_schema as { properties?: unknown } | null)?.properties
  const isInput = (key: string): boolean => isObject(declared) && Object.hasOwn(declared, key)
  const places = new Map(edges.map((edge, index) => [edge, index]))
  for (const { edge, decision } of flow.impossibleJoins)
    found.warn(
      'JOIN_MAY_NOT_FIRE',
      `edges[${places.get(edge)}].activation_group`,
      `waits for several branches of ${quoteName(decision)}, of which a run takes one`,
    )
  for (const [index, node] of nodes.entries()) {
    // Nodes without an id, or with that of an earlier one, are not in the graph.
    if (graph.node(node.id) !== node) continue
    const at = `nodes[${index}]`
    if (graph.starts.length > 0 && !flow.reachable.has(node.id))
      found.warn('NODE_UNREACHABLE', at, `cannot be reached from a node that a run begins with: ${quoteName(node.id)}`)
    checkReads(node, surfacesIn(node), at, { flow, isInput, isNode: id => graph.node(id) !== undefined }, found)
  }
}

type Sorted = Graph & { sorted: readonly string[] }

/** The key at the top of the state that is written, where one is. */
const keyWritten = ({ field, key }: ExpressionSite): string[] =>
  field === 'state_mapping' ? (statePath(key as string)?.slice(0, 1) ?? []) : []

type Reading = { flow: Flow; isInput(key: string): boolean; isNode(id: string): boolean }

function checkReads(
  node: Node,
  surfaces: readonly ExpressionSite[],
  at: string,
  reading: Reading,
  found: FindingList,
): void {
  const own = new Set<string>()
  for (const surface of surfaces) {
    const isWrite = surface.field === 'state_mapping'
    for (const read of stateReads(surface)) {
      // A mapping reads what the node came to, and what it wrote before.
      if (isWrite && (read.what === 'node' ? read.name === node.id : read.what === 'key' && own.has(read.name)))
        continue
      const blocks = surface.field === 'input_mapping' && !read.optional
      checkRead(node, read, pathOf(at, surface), blocks, reading, found)
    }
    for (const key of keyWritten(surface)) own.add(key)
  }
  if (node.type !== 'loop') return
  const { collection } = node
  if (collection != null && typeof collection !== 'string') return
  const read = readOfCollection(collection ?? 'items')
  if (read) checkRead(node, read, `${at}.collection`, false, reading, found)
}

/** @param blocks whether a key that nobody writes is a problem */
function checkRead(
  { id }: Node,
  { what, name }: StateRead,
  path: string,
  blocks: boolean,
  { flow, isInput, isNode }: Reading,
  found: FindingList,
): void {
  const known = quoteName(name)
  if (what === 'nothing') {
    found.warn('STATE_KEY_UNWRITTEN', path, `reads ${known}, but has only output and state to read`)
  } else if (what === 'node') {
    const before = flow.before(id, name)
    const why = isNode(name) ? 'which does not come before it' : 'which is no node'
    if (before === 'never') found.problem('NODE_REFERENCE_NOT_UPSTREAM', path, `reads nodes.${known}, ${why}`)
    if (before === 'maybe')
      found.warn('NODE_REFERENCE_CONDITIONAL', path, `reads nodes.${known}, which not every way there passes`)
  } else {
    const written = flow.written(id, name)
    const hint = isInput(name) ? `; the input is read as input.${known}` : ''
    const unwritten = `reads ${known}, which no node before it writes${hint}`
    if (written === 'maybe')
      found.warn('STATE_KEY_CONDITIONAL', path, `reads ${known}, which is not written on every way there`)
    else if (written === 'never' && blocks) found.problem('STATE_KEY_UNWRITTEN', path, unwritten)
    else if (written === 'never') found.warn('STATE_KEY_UNWRITTEN', path, unwritten)
  }
}
