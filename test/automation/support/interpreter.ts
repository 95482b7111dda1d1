import { isDeepStrictEqual } from 'node:util'
import type { Edge, GraphDefinition, Node } from '#automation/orchestrations/definition/model.ts'
import { readPath } from '#core/expressions/evaluate.ts'
import { evaluate } from '../../support/expressions.ts'
import { answerOf } from './answers.ts'
import { answerTo, type Script } from './tool-double.ts'

/**
 * What must come of a run, computed in the plainest way: one round after the other, nothing ever waits. Where the nodes
 * of a graph wait in truth (mode `free` of graphs.ts), the same nodes complete with the same outcomes, only in another
 * order.
 */

export type State = { input: unknown; nodes: Record<string, unknown>; [key: string]: unknown }

/** A node that was activated and its outcome; `code` is the code of its failure, also where the failure was routed. */
export type Step = {
  round: number
  input: Record<string, unknown>
  attempts: number
  outcome: 'completed' | 'failed'
  artifact: unknown
  label: string | null
  code: string | null
}

export type Prediction = {
  status: 'succeeded' | 'failed'
  /** Nodes by id. Of a run that fails in lockstep, those up to the round of the failure. */
  steps: Map<string, Step>
  /** The state when the run has succeeded, or before the round in which it failed. */
  state: State
  output: Record<string, unknown> | null
}

/** The graphs that nodes run, by the ids that the nodes name. */
export type World = { definition(orchestrationId: string): GraphDefinition }

/**
 * Failing nodes end the interpretation with their round, or (`beyond`) only the nodes that depend on them. `next` picks
 * which of the active nodes complete next, together; all of them by default.
 */
export function interpret(
  definition: GraphDefinition,
  input: Record<string, unknown>,
  world: World,
  { beyond = false, next = all }: { beyond?: boolean; next?: (underWay: Node[]) => Node[] } = {},
): Prediction {
  const seen: Seen = { steps: new Map(), applied: new Set(), passed: new Set() }
  const { steps, applied, passed } = seen
  let state: State = { input, nodes: {} }
  let failed = false
  let underWay: Node[] = []
  for (let round = 1; ; round++) {
    const activated = definition.nodes.filter(({ id }) => !steps.has(id) && activates(definition, seen, id))
    for (const node of activated) steps.set(node.id, { round, ...perform(node, state, world) })
    const broken = activated.filter(({ id }) => steps.get(id)?.outcome === 'failed')
    failed ||= broken.length > 0
    if (failed && !beyond) break
    underWay = definition.nodes.filter(node => underWay.includes(node) || activated.includes(node))
    underWay = underWay.filter(node => !broken.includes(node))
    if (underWay.length === 0) break
    const completing = next(underWay)
    for (const node of completing) {
      const step = steps.get(node.id) as Step
      state = stateBehind(state, node, step.artifact)
      applied.add(node.id)
      for (const edge of definition.edges) if (edge.from === node.id && passes(edge, step)) passed.add(edge)
    }
    underWay = underWay.filter(node => !completing.includes(node))
  }
  const ends = definition.nodes.filter(({ id }) => applied.has(id) && !definition.edges.some(({ from }) => from === id))
  return {
    status: failed ? 'failed' : 'succeeded',
    steps,
    state: plain(state),
    output: failed ? null : Object.fromEntries(ends.map(({ id }) => [id, steps.get(id)?.artifact])),
  }
}

const all = (nodes: Node[]): Node[] => nodes

/** What an interpretation has come to: nodes that were activated, those whose outcome counts, edges that have passed. */
type Seen = { steps: Map<string, Step>; applied: Set<string>; passed: Set<Edge> }

/** A value as it comes back from JSON. */
export const plain = <T>(value: T): T => JSON.parse(JSON.stringify(value))

const passes = (edge: Edge, { label, code }: Step): boolean =>
  edge.condition == null ? code === null : edge.condition === label

/** Whether a node is activated by the edges that have passed; one without edges to it always is. */
function activates({ edges }: GraphDefinition, seen: Seen, id: string): boolean {
  const incoming = edges.filter(({ to }) => to === id)
  if (incoming.length === 0) return true
  const mayStillPass = possible(edges, seen)
  return groupsOf(incoming).some(({ how, members }) => {
    const some = members.some(edge => seen.passed.has(edge))
    if (how === 'any') return some
    if (how === 'all') return members.every(edge => seen.passed.has(edge))
    return some && members.every(edge => seen.passed.has(edge) || !mayStillPass(edge))
  })
}

/** Edges to one node by their groups; one without a group is a group by itself. */
function groupsOf(edges: readonly Edge[]): { how: 'all' | 'any' | 'settled'; members: Edge[] }[] {
  const alone = edges.filter(edge => edge.activation_group == null)
  const grouped = edges.filter(edge => edge.activation_group != null)
  const groups = Object.values(Object.groupBy(grouped, edge => edge.activation_group as string)) as Edge[][]
  return [
    ...alone.map(edge => ({ how: 'any' as const, members: [edge] })),
    ...groups.map(members => ({ how: members[0].activation_condition ?? 'all', members })),
  ]
}

/** Returns whether an edge has passed or may pass yet. */
function possible(edges: readonly Edge[], { steps, applied, passed }: Seen): (edge: Edge) => boolean {
  const known = new Map<string, boolean>()
  // An active node leaves open which of its edges pass, and so does a failed one.
  const mayPass = (edge: Edge): boolean =>
    applied.has(edge.from) ? passed.has(edge) : steps.has(edge.from) || mayActivate(edge.from)
  const mayActivate = (id: string): boolean => {
    const found = known.get(id)
    if (found !== undefined) return found
    const incoming = edges.filter(({ to }) => to === id)
    const may = groupsOf(incoming).some(({ how, members }) =>
      how === 'all' ? members.every(mayPass) : members.some(mayPass),
    )
    known.set(id, may)
    return may
  }
  return mayPass
}

/** The state after a node that has completed. */
function stateBehind(before: State, { id, state_mapping }: Node, artifact: unknown): State {
  const state: State = structuredClone(before)
  state.nodes[id] = artifact
  for (const [key, expression] of Object.entries(state_mapping ?? {})) {
    const path = key.replace(/^state\./, '').split('.')
    const last = path.pop() as string
    let place: Record<string, any> = state
    for (const segment of path) place = place[segment] ??= {}
    place[last] = plain(evaluate(expression, { output: artifact, state }))
  }
  return state
}

type Performed = Omit<Step, 'round'>
type Done = { artifact: unknown; label?: string | null; attempts?: number } | { code: string; attempts?: number }

/** The outcome of a node that is activated with a state. */
function perform(node: Node, state: State, world: World): Performed {
  const input = plain(evaluated(node.input_mapping ?? {}, state)) as Record<string, unknown>
  const done = plain(work(node, input, state, world))
  const attempts = done.attempts ?? 1
  if ('code' in done) {
    const { code } = done
    if (node.on_error === 'route')
      return { input, attempts, outcome: 'completed', artifact: { error: { code } }, label: 'failed', code }
    return { input, attempts, outcome: 'failed', artifact: null, label: null, code }
  }
  return { input, attempts, outcome: 'completed', artifact: done.artifact, label: done.label ?? null, code: null }
}

const evaluated = (mapping: Record<string, unknown>, state: State) =>
  Object.fromEntries(Object.entries(mapping).map(([key, expression]) => [key, evaluate(expression, state)]))

function work(node: Node, input: Record<string, unknown>, state: State, world: World): Done {
  switch (node.type) {
    case 'transform':
      return { artifact: { result: evaluate(node.expression, state) } }
    case 'condition': {
      const value = evaluate(node.expression, state)
      if (typeof value === 'object' && value !== null) return { code: 'ORCHESTRATION_NODE_FAILED' }
      return { artifact: { label: String(value) }, label: String(value) }
    }
    case 'tool':
      return called(node, input)
    case 'poll':
      return polled(node, input, state)
    case 'emit_event':
      return { artifact: { emitted: true, event_type: node.event_type } }
    case 'delay': {
      const waited = evaluate(node.duration ?? node.until, state)
      const usable = typeof waited === 'string' && /^(\d+ms|PT[\d.]+S|\d{4}-.*Z)$/.test(waited)
      return usable ? { artifact: { waited } } : { code: 'ORCHESTRATION_NODE_FAILED' }
    }
    case 'human':
    case 'webhook': {
      const answer = answerOf(node.id)
      return { artifact: answer, label: answer.choice }
    }
    case 'sub_orchestration':
      return nested(node, input, world)
    case 'loop': {
      const found = readPath(state, (node.collection ?? 'items').replace(/^state\./, ''))
      const items = Array.isArray(found) ? found : []
      if (items.length > (node.max_iterations ?? 1000)) return { code: 'ORCHESTRATION_MAX_ITERATIONS_EXCEEDED' }
      const runs = items.map(item => nested(node, { ...input, [node.item_variable ?? 'item']: item }, world))
      const broken = runs.find(run => 'code' in run)
      return broken ?? { artifact: { results: runs.map(run => 'artifact' in run && run.artifact) } }
    }
    default:
      throw new Error(`nothing is known of nodes of type ${node.type}`)
  }
}

const RETRIABLE = [408, 425, 429]

function called({ retry }: Node, input: Script): Done {
  const most = retry?.max_attempts ?? 1
  for (let attempt = 1; ; attempt++) {
    const { status, body } = answerTo(input, { attempt, poll: null })
    if (status === 200) return { artifact: body, attempts: attempt }
    const again = status >= 500 || RETRIABLE.includes(status)
    if (!again || attempt === most) return { code: 'TOOL_HTTP_ERROR', attempts: attempt }
  }
}

function polled(node: Node, input: Script, state: State): Done {
  const most = node.max_iterations ?? 10
  for (let poll = 1; ; poll++) {
    const { body } = answerTo(input, { attempt: 1, poll })
    const met = truthy(evaluate(node.exit_condition, { ...state, response: body, attempt: poll }))
    if (met || poll === most) {
      if (!met && node.fail_on_timeout) return { code: 'ORCHESTRATION_POLL_EXHAUSTED' }
      return { artifact: { result: body, attempts: poll, condition_met: met, timed_out: !met } }
    }
  }
}

const truthy = (value: unknown): boolean => (Array.isArray(value) ? value.length > 0 : Boolean(value))

function nested(node: Node, input: Record<string, unknown>, world: World): Done {
  const { status, output, steps } = interpret(world.definition(node.orchestration_id as string), plain(input), world)
  if (status === 'succeeded') return { artifact: output }
  const codes = [...steps.values()].flatMap(({ outcome, code }) => (outcome === 'failed' && code ? code : []))
  return { code: codes[0] }
}

/** What of an artifact can be known: no id of an event, and of an error that was routed its code. */
function knowable(node: Node, artifact: any): unknown {
  if (node.on_error === 'route' && artifact?.error) return { error: { code: artifact.error.code } }
  if (node.type !== 'emit_event' || !artifact) return artifact
  const { event_id, ...rest } = artifact
  return typeof event_id === 'string' && event_id !== '' ? rest : { ...rest, event_id: 'missing' }
}

/** A run as its record shows it, in its compared fields. */
export type ShownRun = {
  status: string
  output: Record<string, unknown> | null
  state: State
  artifacts: Record<string, unknown>
  error: { code: string } | null
  failed_node_id: string | null
  active_nodes: string[]
  required_actions: unknown[]
  wake_at: string | null
  completed_at: string | null
  node_executions: {
    node_id: string
    attempt: number
    status: string
    input: Record<string, unknown> | null
    output: unknown
    label: string | null
    error: { code: string } | null
  }[]
}

/** Differences of an ended run from its expectation, in sentences; empty when it is. */
export function disagreements(
  { definition, mode }: { definition: GraphDefinition; mode: 'lockstep' | 'free' },
  input: Record<string, unknown>,
  world: World,
  run: ShownRun,
): string[] {
  const predicted = interpret(definition, input, world, { beyond: mode === 'free' })
  const wrong: string[] = []
  const same = (what: string, actual: unknown, expected: unknown) => {
    if (!isDeepStrictEqual(plain({ actual }), plain({ actual: expected })))
      wrong.push(`${what}: ${JSON.stringify(actual)} in place of ${JSON.stringify(expected)}`)
  }
  const nodes = new Map(definition.nodes.map(node => [node.id, node]))
  const shown = (id: string, artifact: unknown) => {
    const node = nodes.get(id)
    return node ? knowable(node, artifact) : artifact
  }
  const shownAll = (artifacts: Record<string, unknown>) =>
    Object.fromEntries(Object.entries(artifacts).map(([id, artifact]) => [id, shown(id, artifact)]))

  same('status', run.status, predicted.status)
  same('active_nodes', run.active_nodes, [])
  same('required_actions', run.required_actions, [])
  same('wake_at', run.wake_at, null)
  if (!run.completed_at) wrong.push('completed_at is missing')

  const failing = [...predicted.steps].filter(([, { outcome }]) => outcome === 'failed')
  const lastRound = Math.max(0, ...failing.map(([, { round }]) => round))
  for (const [id, node] of nodes) {
    const tries = run.node_executions.filter(({ node_id }) => node_id === id)
    const last = tries.at(-1)
    const step = predicted.steps.get(id)
    same(
      `attempts of ${id}`,
      tries.map(({ attempt }) => attempt),
      tries.map((_, index) => index + 1),
    )
    for (const { attempt, status } of tries.slice(0, -1)) same(`status of ${id}, attempt ${attempt}`, status, 'failed')
    if (!step) {
      if (last && !['skipped', 'cancelled'].includes(last.status))
        wrong.push(`${id} must not run and is ${last.status}`)
      if (predicted.status === 'succeeded') same(`skipped node ${id}`, last?.status, 'skipped')
      continue
    }
    // Nodes that were active when another node failed were cancelled; in lockstep these ran next to it.
    const mayBeCut = failing.length > 0 && (mode === 'free' || step.round === lastRound)
    if (mayBeCut && (!last || ['cancelled', 'skipped'].includes(last.status))) continue
    if (mayBeCut && last?.status === 'failed' && tries.length < step.attempts) continue
    same(`status of ${id}`, last?.status, step.outcome)
    same(`number of attempts of ${id}`, tries.length, step.attempts)
    same(`input of ${id}`, last?.input ?? {}, step.input)
    if (step.outcome === 'failed') same(`error of ${id}`, last?.error?.code, step.code)
    else {
      same(`output of ${id}`, shown(node.id, last?.output), step.artifact)
      same(`label of ${id}`, last?.label, step.label)
    }
  }
  for (const { node_id } of run.node_executions) if (!nodes.has(node_id)) wrong.push(`${node_id} is no node`)

  if (predicted.status === 'succeeded' && run.output) {
    same('output', withoutLabels(nodes, shownAll(run.output)), withoutLabels(nodes, predicted.output ?? {}))
    same('error', [run.error, run.failed_node_id], [null, null])
  } else if (predicted.status === 'failed') {
    same('output', run.output, null)
    const broken = failing.find(([id]) => id === run.failed_node_id)
    if (!broken) wrong.push(`failed_node_id: ${run.failed_node_id} in place of one of ${failing.map(([id]) => id)}`)
    else same('error', run.error?.code, broken[1].code)
  } else wrong.push('output is missing')

  const state = { ...run.state, nodes: shownAll(run.state.nodes) }
  same('artifacts', shownAll(run.artifacts), state.nodes)
  if (predicted.status === 'succeeded' || mode === 'lockstep') same('state', state, predicted.state)
  else
    for (const [id, artifact] of Object.entries(state.nodes))
      same(`state of ${id}`, artifact, predicted.steps.get(id)?.artifact)
  return wrong
}

/** A decision has no artifact: no output refers to it. */
const withoutLabels = (nodes: Map<string, Node>, output: Record<string, unknown>) =>
  Object.fromEntries(Object.entries(output).filter(([id]) => nodes.get(id)?.type !== 'condition'))
