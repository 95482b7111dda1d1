import type { GraphDefinition, Node } from '#automation/orchestrations/definition/model.ts'
import { graph } from './children.ts'
import type { Run } from './crowd.ts'
import { EVENTS, type References } from './graphs.ts'

/** A graph that holds every type of node, and what must come of each of its runs. */

const read = (path: string) => ({ var: path })

/** Each node adds one to a sum, so that one whose outcome counted twice, or never, is seen in it. */
const counted = (node: Node): Node => ({
  ...node,
  state_mapping: { ...node.state_mapping, 'state.total': { '+': [{ var: ['state.total', 0] }, 1] } },
})

/** Takes a number `n` and a text `word` that no other run has. */
export function everyType(refs: References & { agent: string; store: string }): GraphDefinition {
  const act = { type: 'tool', tool_id: refs.tool }
  const nodes: Node[] = [
    { id: 'call', ...act, input_mapping: { value: read('input.n') } },
    {
      id: 'flaky',
      ...act,
      input_mapping: { value: 2, fail: 1, status: 503 },
      retry: { max_attempts: 3, backoff: { delay_ms: 20 } },
    },
    { id: 'shape', type: 'transform', expression: { '+': [read('nodes.call.value'), 1] } },
    { id: 'odd', type: 'condition', expression: { '==': [{ '%': [read('input.n'), 2] }, 1] } },
    { id: 'taken', type: 'transform', expression: 'taken' },
    { id: 'left', type: 'transform', expression: 'left' },
    { id: 'think', type: 'agent', agent_id: refs.agent, prompt: { cat: ['think of ', read('input.word')] } },
    {
      id: 'write',
      type: 'memory_write',
      memory_store_id: refs.store,
      input_mapping: { content: { cat: ['The word is ', read('input.word')] } },
    },
    {
      id: 'find',
      type: 'knowledge',
      input_mapping: { query: read('input.word'), memory_store_ids: [refs.store] },
    },
    { id: 'ask', type: 'human', prompt: 'How many?' },
    { id: 'hook', type: 'webhook' },
    { id: 'desk', type: 'approval', tool_id: refs.tool, arguments: { value: read('input.n') }, expires_in: 3600 },
    { id: 'pay', ...act, input_mapping: { value: read('input.n') } },
    {
      id: 'each',
      type: 'loop',
      orchestration_id: refs.child('calling'),
      collection: 'state.input.items',
      item_variable: 'n',
      parallelism: 2,
    },
    {
      id: 'inner',
      type: 'sub_orchestration',
      orchestration_id: refs.child('nested'),
      input_mapping: { n: read('input.n') },
    },
    {
      id: 'asked',
      type: 'sub_orchestration',
      orchestration_id: refs.child('asking'),
      input_mapping: { n: read('input.n') },
    },
    {
      id: 'poll',
      type: 'poll',
      tool_id: refs.tool,
      exit_condition: { '>=': [read('response.poll'), 3] },
      interval: '20ms',
    },
    { id: 'wait', type: 'delay', duration: '60ms' },
    { id: 'join', type: 'transform', expression: read('total') },
    { id: 'tell', type: 'emit_event', event_type: EVENTS[0], input_mapping: { total: read('total') } },
  ]
  const ways = [
    ['call', 'shape', 'write', 'find'],
    ['flaky', 'think'],
    ['wait', 'ask'],
    ['hook', 'desk', 'pay'],
    ['each', 'inner'],
    ['poll', 'asked'],
  ]
  const chains = ways.flatMap(way => way.slice(1).map((to, index) => ({ from: way[index], to })))
  const joins = [...ways.map(way => way.at(-1) as string), 'taken'].map(from => ({
    from,
    to: 'join',
    activation_group: 'all of them',
  }))
  return graph(nodes.map(counted), [
    ...chains,
    { from: 'odd', to: 'taken', condition: 'true' },
    { from: 'odd', to: 'left', condition: 'false' },
    ...joins,
    { from: 'join', to: 'tell' },
  ])
}

/** Inputs of `count` runs: `n` is odd, so that all of them go the same way. */
export const inputsOf = (count: number, prefix: string): { n: number; word: string; items: number[] }[] =>
  Array.from({ length: count }, (_, index) => ({
    n: 2 * index + 1,
    word: `${prefix}${index.toString(26).replace(/\d/g, digit => 'qrstuvwxyz'[Number(digit)])}ish`,
    items: [index, index + 1, index + 2],
  }))

/** Differences of a run from its expectation, in sentences. */
export function strayings({ nodes }: GraphDefinition, input: { n: number; items: number[] }, run: Run): string[] {
  const wrong: string[] = []
  const is = (what: string, actual: unknown, expected: unknown) => {
    if (JSON.stringify(actual) !== JSON.stringify(expected))
      wrong.push(`${run.id}, ${what}: ${JSON.stringify(actual)} in place of ${JSON.stringify(expected)}`)
  }
  is('status', [run.status, run.error], ['succeeded', null])
  is('active_nodes', run.active_nodes, [])
  is('output', Object.keys(run.output ?? {}), ['tell'])
  is('total', run.state.total, nodes.length - 1)
  is('join', run.artifacts.join, { result: nodes.length - 3 })
  is('call', run.artifacts.call, { value: input.n, attempt: 1, poll: null })
  is(
    'each',
    (run.artifacts.each as any)?.results,
    input.items.map(n => ({ end: { result: (n % 100) + 3 } })),
  )
  is('inner', run.artifacts.inner, { end: { result: (((((input.n + 1) * 2) % 100) + 1) % 100) + 5 } })
  is('poll', (run.artifacts.poll as any)?.attempts, 3)
  is('desk', (run.artifacts.desk as any)?.decision, 'approved')
  for (const { id } of nodes) {
    const statuses = run.node_executions.filter(({ node_id }) => node_id === id).map(({ status }) => status)
    is(id, statuses, id === 'left' ? ['skipped'] : id === 'flaky' ? ['failed', 'completed'] : ['completed'])
  }
  return wrong
}
