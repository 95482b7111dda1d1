import { validationProblems } from '#core/api/validate.ts'
import type { Problem } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import { truncateChars } from '#core/base/storable-text.ts'
import { expressionProblem, isReservedName } from '#core/expressions/evaluate.ts'
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
const MAX_EDGES = 2000
const MAX_GRAPH_BYTES = 1024 * 1024

/** Limit of listed findings of each kind. */
export const MAX_FINDINGS = 1000

/** Returns problems as listed in a response; if there are more, the last item says so. */
export const truncateProblems = (problems: readonly Problem[]): Problem[] =>
  problems.length <= MAX_FINDINGS
    ? [...problems]
    : [
        ...problems.slice(0, MAX_FINDINGS - 1),
        { code: 'LIMIT_EXCEEDED', path: '', message: 'has more problems than listed' },
      ]

/** Limit of characters of caller-defined names in paths and messages. */
const MAX_NAME_CHARS = 200

const NODE_ID = /^[A-Za-z0-9_-]{1,128}$/

/** Problems and warnings of a graph. */
export type Findings = { problems: Problem[]; warnings: Problem[] }

/** Returns a caller-defined name for a path or a message. */
export const quoteName = (text: string): string =>
  text.length > MAX_NAME_CHARS ? `${truncateChars(text, MAX_NAME_CHARS)}…` : text

/** Collects findings: one problem more than are listed, to detect truncation. */
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
 * Returns all problems and warnings of a definition. Schemas and references are validated separately (schemas.ts,
 * references.ts).
 */
export function validateGraph(definition: GraphDefinition): Findings {
  const limitProblems = graphLimitProblems(definition)
  if (limitProblems.length > 0) return { problems: limitProblems, warnings: [] }
  const found = new FindingList()
  const { nodes, edges } = definition
  const events = platformEvents()
  checkIds(nodes, found)
  const sites = new Map(nodes.map(node => [node, expressionSites(node)]))
  for (const [index, node] of nodes.entries()) {
    checkNode(node, `nodes[${index}]`, events, found)
    for (const site of sites.get(node) ?? []) checkSite(site, `nodes[${index}]`, found)
  }
  const identified = nodes.filter(({ id }) => typeof id === 'string' && id !== '')
  const dangling = checkEdges(edges, new Set(identified.map(({ id }) => id)), found)
  checkGroups(edges, found)
  const graph = graphOf({ nodes: identified, edges })
  checkStart(graph, found)
  const isCyclic = checkCycles(graph, identified, edges, found)
  if (!dangling && !isCyclic && graph.sorted !== null) checkFlow(definition, graph as Sorted, sites, found)
  return found
}

/** Returns the size problems of a definition; a definition above a limit is not validated further. */
export function graphLimitProblems({ nodes, edges, state_schema, input_schema }: GraphDefinition): Problem[] {
  const bytes = Buffer.byteLength(JSON.stringify({ nodes, edges, state_schema, input_schema }))
  return exceededLimits([
    ['nodes', 'items', nodes.length, MAX_NODES],
    ['edges', 'items', edges.length, MAX_EDGES],
    ['', 'bytes as JSON', bytes, MAX_GRAPH_BYTES],
  ])
}

type SizeLimit = [path: string, what: string, has: number, most: number]

/** Returns a problem for each exceeded limit. */
export const exceededLimits = (limits: readonly SizeLimit[]): Problem[] =>
  limits.flatMap(([path, what, has, most]) =>
    has > most ? [{ code: 'LIMIT_EXCEEDED', path, message: `must have at most ${most} ${what}, has ${has}` }] : [],
  )

function checkIds(nodes: readonly Node[], found: FindingList): void {
  const first = new Map<unknown, number>()
  for (const [index, { id }] of nodes.entries()) {
    const path = `nodes[${index}].id`
    if (id == null || id === '') found.problem('NODE_ID_REQUIRED', path, 'is required')
    else if (typeof id !== 'string' || !NODE_ID.test(id))
      found.problem('NODE_ID_INVALID', path, 'must be 1 to 128 letters, digits, _ and -')
    else if (isReservedName(id))
      found.problem('NODE_ID_INVALID', path, `must not be ${id}, which expressions cannot read`)
    else if (first.has(id))
      found.problem('NODE_ID_DUPLICATE', path, `is a duplicate of nodes[${first.get(id)}].id: ${id}`)
    else first.set(id, index)
  }
}

export const isMissing = (value: unknown): boolean => value === undefined || value === null || value === ''

function checkNode(node: Node, at: string, events: ReadonlySet<string>, found: FindingList): void {
  const { type } = node
  if (isMissing(type)) found.problem('NODE_TYPE_REQUIRED', `${at}.type`, 'is required')
  else if (typeof type !== 'string') found.problem('NODE_FIELD_INVALID', `${at}.type`, 'must be a string')
  else if (!isType(type))
    found.warn(
      'NODE_TYPE_UNKNOWN',
      `${at}.type`,
      `is not supported by this release, so runs fail at the node: ${quoteName(type)}`,
    )
  for (const [name, field] of nodeFields) {
    const value = (node as Record<string, unknown>)[name]
    const path = `${at}.${name}`
    if (field.types && !(field.types as readonly unknown[]).includes(type)) {
      if (value != null && isType(type)) found.warn('NODE_FIELD_UNUSED', path, `is ignored by nodes of type ${type}`)
    } else if (field.required && isMissing(value))
      found.problem('NODE_FIELD_REQUIRED', path, `is required for nodes of type ${type}`)
    else if (value != null) checkField(field, value, path, found)
  }
  if (type === 'delay' && (node.duration == null) === (node.until == null))
    found.problem(
      'NODE_FIELD_REQUIRED',
      `${at}.duration`,
      'is required if until is not set, and cannot be combined with it',
    )
  if (type === 'poll' && Number(node.max_iterations ?? 0) > 1000)
    found.problem('NODE_FIELD_INVALID', `${at}.max_iterations`, 'must be at most 1000 for nodes of type poll')
  if (type === 'loop' && typeof node.item_variable === 'string' && isReservedName(node.item_variable))
    found.problem('NODE_FIELD_INVALID', `${at}.item_variable`, 'cannot be read by expressions')
  if (type === 'emit_event') checkEvent(node.event_type, `${at}.event_type`, events, found)
}

function checkSite(site: ExpressionSite, at: string, found: FindingList): void {
  const { field, key, expression } = site
  // Values other than objects and texts are small.
  const isLarge = typeof expression === 'object' || typeof expression === 'string'
  const problem = isLarge ? expressionProblem(expression) : null
  if (problem) found.problem('NODE_FIELD_INVALID', pathOf(at, site), problem)
  const code = field === 'state_mapping' ? statePathProblem(key as string) : null
  if (code === 'STATE_PATH_INVALID')
    found.problem(code, pathOf(at, site), 'is not a valid path: 1 to 32 names separated by dots')
  else if (code) found.problem(code, pathOf(at, site), 'must not write the reserved keys input and nodes')
}

function checkField({ schema, code = 'NODE_FIELD_INVALID' }: Field, value: unknown, path: string, found: FindingList) {
  for (const problem of validationProblems(schema, value, path))
    found.problem(code, quoteName(problem.path), problem.message)
}

function checkEvent(name: unknown, path: string, events: ReadonlySet<string>, found: FindingList): void {
  if (typeof name !== 'string' || !EVENT_TYPE.test(name)) return
  if (events.has(name))
    found.problem('EVENT_TYPE_RESERVED', path, `is reserved for an event of the platform: ${quoteName(name)}`)
  else if ([...events].some(event => namespaceOf(event) === namespaceOf(name)))
    found.warn('EVENT_NOT_TRIGGERABLE', path, `shares its namespace with platform events, so triggers cannot match it`)
}

/** Checks edges; returns whether an edge has an unknown end. */
function checkEdges(edges: readonly Edge[], ids: ReadonlySet<string>, found: FindingList): boolean {
  let dangling = false
  for (const [index, edge] of edges.entries()) {
    const at = `edges[${index}]`
    for (const end of ['from', 'to'] as const) {
      const id: unknown = edge[end]
      if (typeof id === 'string' && ids.has(id)) continue
      dangling = true
      if (typeof id === 'string')
        found.problem('EDGE_NODE_UNKNOWN', `${at}.${end}`, `refers to a node that does not exist: ${quoteName(id)}`)
      else found.problem('EDGE_FIELD_INVALID', `${at}.${end}`, isMissing(id) ? 'is required' : 'must be a string')
    }
    for (const [name, field] of edgeFields) {
      const value = (edge as Record<string, unknown>)[name]
      if (value != null) checkField({ ...field, code: 'EDGE_FIELD_INVALID' }, value, `${at}.${name}`, found)
    }
  }
  return dangling
}

/** Checks that all edges of a group have the same activation condition. */
function checkGroups(edges: readonly Edge[], found: FindingList): void {
  const first = new Map<string, unknown>()
  for (const [index, { to, activation_group, activation_condition }] of edges.entries()) {
    const path = `edges[${index}].activation_condition`
    if (activation_group == null) {
      if (activation_condition != null)
        found.problem('EDGE_FIELD_INVALID', path, 'is allowed only with activation_group')
      continue
    }
    const group = JSON.stringify([to, activation_group])
    const condition = activation_condition ?? 'all'
    if (!first.has(group)) first.set(group, condition)
    else if (first.get(group) !== condition)
      found.problem('EDGE_FIELD_INVALID', path, 'differs from another edge of the same group (default all)')
  }
}

function checkStart({ nodes, starts }: Graph, found: FindingList): void {
  if (nodes.length > 0 && starts.length === 0)
    found.problem('NO_START_NODE', 'nodes', 'must include a node without incoming edges, where runs start')
}

/** Checks for cycles; returns whether a cycle contains no `loop` node. */
function checkCycles(graph: Graph, nodes: readonly Node[], edges: readonly Edge[], found: FindingList): boolean {
  const cycles = cyclesOf({ nodes: nodes.filter(({ type }) => type !== 'loop'), edges })
  for (const ids of cycles) {
    const listed = ids.slice(0, 20).map(quoteName).join(', ')
    found.problem('CYCLE_DETECTED', 'edges', `form a cycle: ${listed}${ids.length > 20 ? ', …' : ''}`)
  }
  if (cycles.length === 0 && graph.back.size > 0)
    for (const [index, edge] of edges.entries())
      if (graph.back.has(edge))
        found.warn('LOOP_REENTRY', `edges[${index}]`, `closes a cycle to ${quoteName(edge.to)} and never activates it`)
  return cycles.length > 0
}

const pathOf = (at: string, { field, key }: Pick<ExpressionSite, 'field' | 'key'>): string =>
  key === null ? `${at}.${field}` : `${at}.${field}.${quoteName(key)}`

/** Checks that depend on the paths through the graph. */
function checkFlow(
  { nodes, edges, input_schema }: GraphDefinition,
  graph: Sorted,
  sites: ReadonlyMap<Node, readonly ExpressionSite[]>,
  found: FindingList,
): void {
  const sitesIn = (node: Node) => sites.get(node) ?? []
  const flow = new Flow(graph, new Map(graph.nodes.map(node => [node.id, sitesIn(node).flatMap(keyWritten)])))
  const declared = (input_schema as { properties?: unknown } | null)?.properties
  const isInput = (key: string): boolean => isObject(declared) && Object.hasOwn(declared, key)
  const edgeIndexes = new Map(edges.map((edge, index) => [edge, index]))
  for (const { edge, decision } of flow.impossibleJoins)
    found.warn(
      'JOIN_MAY_NOT_FIRE',
      `edges[${edgeIndexes.get(edge)}].activation_group`,
      `requires several branches of ${quoteName(decision)}, of which a run takes only one`,
    )
  for (const [index, node] of nodes.entries()) {
    // Nodes with a missing or duplicate ID are not part of the graph.
    if (graph.node(node.id) !== node) continue
    const at = `nodes[${index}]`
    if (graph.starts.length > 0 && !flow.reachable.has(node.id))
      found.warn('NODE_UNREACHABLE', at, `is not reachable from a start node: ${quoteName(node.id)}`)
    checkReads(node, sitesIn(node), at, { flow, isInput, isNode: id => graph.node(id) !== undefined }, found)
  }
}

type Sorted = Graph & { sorted: readonly string[] }

/** Returns the top-level state key that an expression writes, if any. */
const keyWritten = ({ field, key }: ExpressionSite): string[] =>
  field === 'state_mapping' ? (statePath(key as string)?.slice(0, 1) ?? []) : []

type ReadContext = { flow: Flow; isInput(key: string): boolean; isNode(id: string): boolean }

function checkReads(
  node: Node,
  sites: readonly ExpressionSite[],
  at: string,
  reading: ReadContext,
  found: FindingList,
): void {
  const own = new Set<string>()
  for (const site of sites) {
    const isWrite = site.field === 'state_mapping'
    for (const read of stateReads(site)) {
      // A state_mapping may read the artifact of its node and its earlier writes.
      if (isWrite && (read.what === 'node' ? read.name === node.id : read.what === 'key' && own.has(read.name)))
        continue
      const blocks = site.field === 'input_mapping' && !read.optional
      checkRead(node, read, pathOf(at, site), blocks, reading, found)
    }
    for (const key of keyWritten(site)) own.add(key)
  }
  if (node.type !== 'loop') return
  const { collection } = node
  if (collection != null && typeof collection !== 'string') return
  const read = readOfCollection(collection ?? 'items')
  if (read) checkRead(node, read, `${at}.collection`, false, reading, found)
}

/** @param blocks whether an unwritten key is a problem rather than a warning */
function checkRead(
  { id }: Node,
  { what, name }: StateRead,
  path: string,
  blocks: boolean,
  { flow, isInput, isNode }: ReadContext,
  found: FindingList,
): void {
  const shownName = quoteName(name)
  if (what === 'nothing') {
    found.warn('STATE_KEY_UNWRITTEN', path, `reads ${shownName}, but only output and state are available`)
  } else if (what === 'node') {
    const before = flow.before(id, name)
    const why = isNode(name) ? 'which is not upstream' : 'which does not exist'
    if (before === 'never') found.problem('NODE_REFERENCE_NOT_UPSTREAM', path, `reads nodes.${shownName}, ${why}`)
    if (before === 'maybe')
      found.warn('NODE_REFERENCE_CONDITIONAL', path, `reads nodes.${shownName}, which not every path passes`)
  } else {
    const written = flow.written(id, name)
    const hint = isInput(name) ? `; use input.${shownName} to read the input` : ''
    const unwritten = `reads ${shownName}, which no upstream node writes${hint}`
    if (written === 'maybe')
      found.warn('STATE_KEY_CONDITIONAL', path, `reads ${shownName}, which is not written on every path`)
    else if (written === 'never' && blocks) found.problem('STATE_KEY_UNWRITTEN', path, unwritten)
    else if (written === 'never') found.warn('STATE_KEY_UNWRITTEN', path, unwritten)
  }
}
