import type { Edge, Node } from '#automation/orchestrations/definition/definition.ts'
import { diagramOf } from '#automation/orchestrations/definition/diagram.ts'
import { cyclesOf, graphOf } from '#automation/orchestrations/definition/graph.ts'
import { statePathProblem } from '#automation/orchestrations/definition/state-paths.ts'
import { MAX_NODES, validateGraph } from '#automation/orchestrations/definition/validate.ts'
import { compilePlaybook } from '#automation/playbooks/definition/compile-playbook.ts'
import type { PlaybookStep } from '#automation/playbooks/definition/definition.ts'
import { validatePlaybook } from '#automation/playbooks/definition/validate.ts'
import { prettyJson, toPrintable, toSingleLine } from '#automation/playbooks/exports/printable-text.ts'
import { nextOccurrence } from '#automation/triggers/cron.ts'
import { MAX_STATES } from '#automation/workflows/definition/definition.ts'
import { validateWorkflow } from '#automation/workflows/definition/validate.ts'
import { items, keys, repeated, repetitions } from '../inputs.ts'
import { costCase } from '../measure.ts'

const RECORD_TEXT = { limit: 64 * 1024, bound: 'characters of a text of a record' }
const GRAPH = { limit: MAX_NODES, bound: 'nodes of an orchestration' }
const PLAYBOOK = { limit: 100, bound: 'steps of a playbook' }

const printable = repetitions(['\r', '\n', ' ', '\u0001', '\u200b', 'a', '\ud800'])

/** Nodes that read each other, with four edges each, as there may be 2,000. */
const graph =
  (target: (at: number, edge: number, n: number) => number, type = 'transform') =>
  (n: number): { nodes: Node[]; edges: Edge[] } => ({
    nodes: items(at => ({ id: `n${at}`, type, expression: { var: `state.n${(at * 7) % n}` } }))(n),
    edges: items(at => at)(n).flatMap(at =>
      [0, 1, 2, 3].map(edge => ({ from: `n${at}`, to: `n${target(at, edge, n)}` })),
    ),
  })
const graphs = {
  chain: graph((at, edge, n) => Math.min(at + 1 + edge, n - 1)),
  dense: graph((at, edge, n) => (at + (edge * n) / 4) % n),
  cycle: graph((at, edge, n) => (at + 1 + edge) % n),
  loops: graph((at, edge, n) => (at + 1 + edge) % n, 'loop'),
  reversed: graph((at, edge) => Math.max(at - 1 - edge, 0)),
  'large expressions': (n: number) => ({
    nodes: items(at => ({
      id: `n${at}`,
      type: 'transform',
      expression: { and: items(each => ({ var: `state.v${each}` }))(100) },
    }))(n),
    edges: [],
  }),
}

const steps = (step: (at: number, n: number) => object) => (n: number) => ({
  steps: items(at => ({ key: `k${at}`, title: 'x', type: 'manual', ...step(at, n) }))(n) as PlaybookStep[],
})
const playbooks = {
  'in order': steps(() => ({})),
  'all to all': steps((_at, n) => ({
    type: 'branch',
    rules: items(to => ({ when: { '==': [{ var: `steps.k${to}.x` }, 1] }, go_to: `k${to}` }))(Math.min(n, 30)),
  })),
  conditional: steps((at, n) => ({
    when: { '!=': [{ var: `steps.k${(at * 7) % n}.x` }, 1] },
    on_failure: `k${(at + 1) % n}`,
  })),
}

export default [
  costCase({
    name: 'automation/playbooks/exports/printable-text.ts toPrintable',
    ...RECORD_TEXT,
    inputs: printable,
    run: toPrintable,
  }),
  costCase({
    name: 'automation/playbooks/exports/printable-text.ts toSingleLine',
    ...RECORD_TEXT,
    inputs: printable,
    run: toSingleLine,
  }),
  costCase<unknown>({
    name: 'automation/playbooks/exports/printable-text.ts prettyJson',
    limit: 20_000,
    bound: 'values of a record',
    inputs: { items: items(() => ({})), keys: keys(() => 'x') },
    run: prettyJson,
  }),
  costCase({
    name: 'automation/orchestrations/definition/validate.ts validateGraph',
    ...GRAPH,
    inputs: graphs,
    run: parts => validateGraph({ ...parts, state_schema: null, input_schema: null }),
  }),
  costCase({ name: 'automation/orchestrations/definition/graph.ts cyclesOf', ...GRAPH, inputs: graphs, run: cyclesOf }),
  costCase({
    name: 'automation/orchestrations/definition/diagram.ts diagramOf',
    ...GRAPH,
    inputs: graphs,
    run: parts => diagramOf(graphOf(parts)),
  }),
  costCase({
    name: 'automation/orchestrations/definition/state-paths.ts statePathProblem',
    limit: 64 * 1024,
    bound: 'characters of a path',
    inputs: repetitions(['.', 'a', 'state.', '__proto__']),
    run: statePathProblem,
  }),
  costCase({
    name: 'automation/playbooks/definition/validate.ts validatePlaybook',
    ...PLAYBOOK,
    inputs: playbooks,
    run: definition => validatePlaybook(definition as never),
  }),
  costCase({
    name: 'automation/playbooks/definition/compile-playbook.ts compilePlaybook',
    ...PLAYBOOK,
    inputs: playbooks,
    run: compilePlaybook,
  }),
  costCase({
    name: 'automation/triggers/cron.ts nextOccurrence',
    limit: 255,
    bound: 'characters of a cron expression',
    inputs: {
      'every minute': repeated('*/1,', { after: '*/1 * * * *' }),
      'a day every 28 years': repeated('0,', { before: '0 0 29 2 ', after: '0' }),
      blanks: repeated(' ', { before: '0', after: ' 0 1 1 *' }),
    },
    run: text => nextOccurrence(text, 'America/New_York', new Date(Date.UTC(2026, 2, 1))),
  }),
  costCase({
    name: 'automation/workflows/definition/validate.ts validateWorkflow',
    limit: MAX_STATES,
    bound: 'states of a workflow',
    inputs: {
      'all to all': n => ({
        states: items(at => ({ name: `s${at}`, initial: at === 0 }))(n),
        transitions: items(at => ({ name: `t${at}`, from: items(from => `s${from}`)(n), to: `s${at % n}` }))(3 * n),
        payload_schema: null,
      }),
      automated: n => ({
        states: items(at => ({
          name: `s${at}`,
          initial: at === 0,
          on_enter: {
            dispatch: { kind: 'tool', tool_id: 'x', input_mapping: keys(() => ({ var: 'task.payload.x' }))(20) },
            on_complete: items(() => ({ when: { '==': [1, 1] }, transition: 't0' }))(20),
          },
        }))(n),
        transitions: [],
        payload_schema: null,
      }),
    },
    run: validateWorkflow,
  }),
]
