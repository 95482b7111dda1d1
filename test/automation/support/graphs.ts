import type { Edge, GraphDefinition, Node } from '#automation/orchestrations/definition/model.ts'
import { CHOICES } from './answers.ts'
import { CHILD_NAMES, type ChildName, graph } from './children.ts'
import { type Random, randomOf } from './random.ts'

/**
 * `lockstep`: no node waits for anything, so that rounds follow each other and everything about a run is determined.
 * `free`: nodes wait for times, people and retries, and come back in whatever order. Then nodes read only state that exists
 * on every way to them, and write separate keys, so that the end of a run is determined all the same.
 */
export type Mode = 'lockstep' | 'free'

export type RandomGraph = {
  seed: number
  mode: Mode
  definition: GraphDefinition
  input: Record<string, unknown>
}

/** What the nodes of a graph refer to, by its ids in a project. */
export type References = { tool: string; child(name: ChildName): string }

const MAX_NODES = 40
/** How far back, in the order of a walk, the sources of a node are searched. */
const WINDOW = 7

/** What nodes emit. */
export const EVENTS = ['graphs.one', 'graphs.two', 'graphs.three.four'] as const

const PARKING: readonly ChildName[] = ['asking', 'retried', 'delayed']
const EXECUTING = CHILD_NAMES.filter(name => !PARKING.includes(name))

/** Types by how many of ten nodes or so are of them. */
const LOCKSTEP_TYPES = { transform: 30, condition: 22, tool: 18, emit_event: 8, sub_orchestration: 5, loop: 4 }
const FREE_TYPES = { ...LOCKSTEP_TYPES, human: 5, webhook: 3, delay: 8, poll: 4 }

/** A node on its way into a graph. */
type Draft = {
  node: Node
  /** Labels that it may complete with. */
  labels: string[]
  /** Nodes before it on some way. */
  upstream: Set<Draft>
  /** Nodes that have completed on every way to it. */
  sure: Set<Draft>
  /** State keys that no other node writes. */
  keys: string[]
}

/** A valid graph of 1 to 40 nodes with an input; the same for the same seed and references. */
export function randomGraph(seed: number, mode: Mode, references: References, size?: number): RandomGraph {
  const random = randomOf(seed)
  const count = size ?? 1 + Math.floor((MAX_NODES - 1) * random.next() ** 3 + random.next() * 1.5)
  const drafts: Draft[] = []
  const edges: Edge[] = []
  for (let index = 0; index < count; index++) {
    const incoming = index === 0 || (index > 4 && random.chance(0.08)) ? [] : edgesTo(random, idOf(index), drafts)
    const draft = placed(idOf(index), incoming, drafts)
    draft.node = nodeOf(random, mode, references, draft)
    drafts.push(draft)
    edges.push(...incoming)
  }
  return {
    seed,
    mode,
    definition: graph(random.shuffled(drafts.map(({ node }) => node)), random.shuffled(edges)),
    input: {
      n: random.between(0, 9),
      m: random.between(0, 99),
      items: Array.from({ length: random.between(0, 4) }, () => random.between(0, 20)),
      word: random.pick(['ash', 'birch', 'cedar']),
    },
  }
}

const idOf = (index: number): string => ['n', 'step-', 'A_'][index % 3] + index

/** Edges to a node from some of those before it: each for itself, in groups, or both. */
function edgesTo(random: Random, to: string, drafts: readonly Draft[]): Edge[] {
  const sources = random.some(drafts.slice(-WINDOW), random.pick([1, 1, 1, 2, 2, 3, 4]))
  const edges = sources.flatMap(({ node, labels }): Edge[] => {
    if (labels.length === 0 || random.chance(0.25)) return [{ from: node.id, to }]
    const [one, other] = random.shuffled(labels)
    // Two labels of one decision may lead to one node.
    if (other !== undefined && random.chance(0.1))
      return [one, other].map(condition => ({ from: node.id, to, condition }))
    return [{ from: node.id, to, condition: one }]
  })
  const group = (name: string, members: Edge[]) => {
    const activation_condition = random.pick(['all', 'any', 'settled', null] as const)
    for (const edge of members)
      Object.assign(edge, { activation_group: name }, activation_condition && { activation_condition })
  }
  const style = random.pick(['single', 'single', 'group', 'group', 'mixed', 'two'] as const)
  const half = Math.ceil(edges.length / 2)
  if (style === 'group' && edges.length > 1) group('join', edges)
  if (style === 'mixed' && edges.length > 2) group('rest', edges.slice(1))
  if (style === 'two' && edges.length > 2) {
    group('one', edges.slice(0, half))
    group('two', edges.slice(half))
  }
  return edges
}

/** A draft after its edges, without its node. */
function placed(id: string, incoming: readonly Edge[], drafts: readonly Draft[]): Draft {
  const of = (edge: Edge) => drafts.find(({ node }) => node.id === edge.from) as Draft
  const upstream = new Set(incoming.map(of).flatMap(source => [source, ...source.upstream]))
  const behind = (edge: Edge) => new Set([of(edge), ...of(edge).sure])
  // State that is sure on each way on which the node may be activated; the intersection of all is sure.
  const ways: Set<Draft>[] = []
  for (const members of Object.values(Object.groupBy(incoming, edge => edge.activation_group ?? ''))) {
    const [first] = members as Edge[]
    const all = first.activation_group && (first.activation_condition ?? 'all') === 'all'
    const each = (members as Edge[]).map(behind)
    if (all) ways.push(new Set(each.flatMap(set => [...set])))
    else ways.push(...each)
  }
  const sure = new Set([...upstream].filter(source => ways.every(way => way.has(source))))
  return { node: { id, type: '' }, labels: [], upstream, sure, keys: [] }
}

function nodeOf(random: Random, mode: Mode, references: References, draft: Draft): Node {
  const weights = Object.entries(mode === 'lockstep' ? LOCKSTEP_TYPES : FREE_TYPES)
  let at = random.next() * weights.reduce((sum, [, weight]) => sum + weight, 0)
  const [type] = weights.find(([, weight]) => (at -= weight) < 0) ?? weights[0]
  const { id } = draft.node
  const value = () => number(random, mode, draft)
  const node: Node = { id, type }
  const routes = (probability: number) => {
    if (!random.chance(probability)) return
    node.on_error = 'route'
    draft.labels.push('failed')
  }
  switch (type) {
    case 'transform':
      node.expression = { '%': [value(), random.pick([7, 97, 997])] }
      break
    case 'condition':
      Object.assign(node, condition(random, draft, value))
      if ('fails' in node) {
        delete node.fails
        routes(0.5)
      }
      break
    case 'tool': {
      node.tool_id = references.tool
      const { fail, status, retry } = failures(random, mode)
      node.input_mapping = { value: value(), ...(fail > 0 ? { fail, status } : {}) }
      if (retry) node.retry = retry
      if (random.chance(0.2)) node.timeout = random.pick(['60s', 'PT1M', '1.5m'])
      routes(fail > 0 ? 0.6 : 0.1)
      break
    }
    case 'poll': {
      node.tool_id = references.tool
      node.input_mapping = { value: value() }
      const needed = random.between(1, 3)
      node.exit_condition = { '>=': [{ var: random.pick(['attempt', 'response.poll']) }, needed] }
      node.interval = random.pick(['0ms', '5ms', 'PT0.01S'])
      if (random.chance(0.5)) node.max_iterations = random.between(1, 4)
      if (random.chance(0.2)) {
        node.fail_on_timeout = true
        routes(0.7)
      }
      break
    }
    case 'emit_event':
      node.event_type = random.pick(EVENTS)
      node.input_mapping = { value: value(), fixed: { list: [1, 'two', null] } }
      break
    case 'sub_orchestration': {
      node.orchestration_id = references.child(childName(random, mode))
      node.input_mapping = { n: value() }
      if (random.chance(0.3)) node.context_keys = []
      routes(0.4)
      break
    }
    case 'loop':
      node.orchestration_id = references.child(childName(random, mode))
      node.collection = random.pick(['state.input.items', 'input.items'])
      node.item_variable = 'n'
      node.input_mapping = { word: { var: 'input.word' }, n: 'replaced' }
      if (random.chance(0.5)) node.parallelism = random.between(1, 3)
      if (random.chance(0.1)) node.max_iterations = 2
      routes(0.4)
      break
    case 'human':
      node.prompt = random.chance(0.5) ? { cat: ['How many of ', { var: 'input.m' }, '?'] } : 'How many?'
      node.input_mapping = { about: value() }
      if (random.chance(0.5)) node.options = [...CHOICES]
      draft.labels.push(...CHOICES)
      break
    case 'webhook':
      if (random.chance(0.3)) node.mode = 'receive'
      draft.labels.push(...CHOICES)
      break
    case 'delay':
      Object.assign(
        node,
        random.pick([
          { duration: '0ms' },
          { duration: '12ms' },
          { duration: 'PT0.02S' },
          { duration: { cat: [{ '%': [{ var: 'input.m' }, 20] }, 'ms'] } },
          { until: '2020-01-01T00:00:00.000Z' },
        ]),
      )
      if (random.chance(0.03)) {
        delete node.until
        node.duration = { cat: ['soon', { var: 'input.n' }] }
        routes(0.6)
      }
      break
  }
  const written = writes(random, mode, draft, node)
  if (Object.keys(written).length > 0) node.state_mapping = written
  return node
}

const childName = (random: Random, mode: Mode): ChildName =>
  random.pick(mode === 'free' && random.chance(0.4) ? PARKING : EXECUTING)

function failures(random: Random, mode: Mode): { fail: number; status: number; retry?: Node['retry'] } {
  const status = random.pick([500, 503, 429, 408, 404, 400, 422])
  if (mode === 'lockstep') {
    const fail = random.chance(0.08) ? 1 : 0
    // A refusal that no retry helps: its node does not wait.
    const retry = status < 408 && random.chance(0.3) ? { max_attempts: 3 } : undefined
    return { fail, status, retry }
  }
  const max_attempts = random.between(1, 4)
  const fail = random.chance(0.4) ? random.between(0, random.chance(0.2) ? max_attempts : max_attempts - 1) : 0
  const strategy = random.pick(['fixed', 'exponential'] as const)
  const backoff = { strategy, delay_ms: random.pick([0, 4, 10]), max_delay_ms: 30 }
  return {
    fail,
    status: fail > 0 && random.chance(0.85) ? random.pick([500, 503, 429, 408]) : status,
    retry: { max_attempts, backoff },
  }
}

/** A decision, with the labels that it may have. */
function condition(random: Random, draft: Draft, value: () => unknown): Partial<Node> & { fails?: true } {
  if (random.chance(0.02)) return { expression: [value()], fails: true }
  const kind = random.pick(['boolean', 'number', 'text', 'null'] as const)
  const take = (labels: string[], expression: unknown) => {
    draft.labels.push(...labels)
    return { expression }
  }
  if (kind === 'boolean') return take(['true', 'false'], { '>': [{ '%': [value(), 10] }, 4] })
  if (kind === 'number') return take(['0', '1', '2'], { '%': [value(), 3] })
  if (kind === 'null') return take(['null', '1.5'], { if: [{ '==': [{ '%': [value(), 2] }, 0] }, null, 1.5] })
  const even = { '==': [{ '%': [value(), 2] }, 0] }
  return take(['even', 'odd one'], { if: [even, 'even', 'odd one'] })
}

/** What a node writes to the state. */
function writes(random: Random, mode: Mode, draft: Draft, { id, type }: Node): Record<string, unknown> {
  const written: Record<string, unknown> = {}
  const prefix = random.pick(['state.', ''])
  const output = { var: outputOf(type) }
  if (random.chance(0.4)) {
    const key = random.chance(0.3) ? `k_${id}.deep.value` : `k_${id}`
    written[prefix + key] = random.chance(0.5) ? output : { cat: [output, '/', { var: ['state.input.m', 0] }] }
    draft.keys.push(key)
    // Sees the newest writes.
    if (random.chance(0.3)) {
      written[`again_${id}`] = { var: `state.${key}` }
      draft.keys.push(`again_${id}`)
    }
  }
  // Additions do not depend on their order.
  if (random.chance(0.4)) written[`${prefix}total`] = { '+': [{ var: ['state.total', 0] }, random.between(1, 9)] }
  if (mode === 'lockstep' && random.chance(0.4))
    written[`${prefix}last`] = { cat: [{ var: ['state.last', ''] }, `${id} `] }
  return written
}

/** A part of what a node of a type comes to, which is a number or a text. */
function outputOf(type: string): string {
  const parts: Record<string, string> = {
    transform: 'output.result',
    condition: 'output.label',
    tool: 'output.value',
    poll: 'output.attempts',
    emit_event: 'output.event_type',
    sub_orchestration: 'output.end.result',
    loop: 'output.results.0.end.result',
    human: 'output.n',
    webhook: 'output.choice',
    delay: 'output.waited',
  }
  return parts[type]
}

/** An expression that gives a number, or what counts as one, from what the node may read. */
function number(random: Random, mode: Mode, draft: Draft): unknown {
  const known = [...(mode === 'lockstep' ? draft.upstream : draft.sure)]
  const atom = (): unknown => {
    if (known.length > 0 && random.chance(0.65)) {
      const source = random.pick(known)
      const key = source.keys.length > 0 && random.chance(0.4) ? random.pick(source.keys) : null
      return key ? { length: { cat: { var: key } } } : artifactOf(random, source.node)
    }
    const last = mode === 'lockstep' && draft.upstream.size > 0 && random.chance(0.15)
    if (last) return { length: { var: ['last', ''] } }
    return random.pick([
      random.between(0, 50),
      { var: 'input.n' },
      { var: 'input.m' },
      { length: { var: 'input.items' } },
    ])
  }
  const parts = [atom(), atom()]
  const way = random.pick(['one', 'one', '+', '-', 'max', 'if'] as const)
  if (way === 'one') return parts[0]
  if (way === 'if') return { if: [{ '>': [parts[0], 5] }, parts[1], { '+': [parts[0], 1] }] }
  return { [way]: parts }
}

/** A number that follows from the outcome of a node; of a routed failure, null or 0. */
function artifactOf(random: Random, { id, type, on_error }: Node): unknown {
  const at = `nodes.${id}`
  if (on_error === 'route' && random.chance(0.3)) return { length: { var: [`${at}.error.code`, 'none'] } }
  const sum = { '+': [{ var: 'accumulator' }, { var: 'current.end.result' }] }
  const numbers: Record<string, unknown> = {
    transform: { var: `${at}.result` },
    condition: { length: { var: `${at}.label` } },
    tool: { var: `${at}.value` },
    poll: { '+': [{ var: `${at}.attempts` }, { var: `${at}.result.poll` }] },
    emit_event: { length: { var: `${at}.event_type` } },
    sub_orchestration: { var: `${at}.end.result` },
    loop: { reduce: [{ var: `${at}.results` }, sum, 0] },
    human: { var: `${at}.n` },
    webhook: { var: `${at}.n` },
    delay: { length: { var: `${at}.waited` } },
  }
  return numbers[type]
}
