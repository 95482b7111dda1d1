import type { Edge, GraphDefinition, Node } from '#automation/orchestrations/definition/model.ts'

/** Small graphs that others run as a step. Each takes a number `n` and ends with a node `end`, whose `result` is one. */

const read = (path: string) => ({ var: path })

export const graph = (nodes: Node[], edges: Edge[]): GraphDefinition => ({
  nodes,
  edges,
  state_schema: null,
  input_schema: null,
})

/** Nodes one after the other. */
const chain = (...nodes: Node[]): GraphDefinition =>
  graph(
    nodes,
    nodes.slice(1).map((node, index) => ({ from: nodes[index].id, to: node.id })),
  )

const end = (from: string, plus = 1): Node => ({
  id: 'end',
  type: 'transform',
  expression: { '+': [{ '%': [read(from), 100] }, plus] },
})

export type Child = { definition: GraphDefinition; parks: boolean }

/** What a child that is made in a project refers to. */
export type Made = { tool: string; child(name: string): string }

export const CHILD_NAMES = [
  'plain',
  'calling',
  'branched',
  'nested',
  'refused',
  'asking',
  'retried',
  'delayed',
] as const
export type ChildName = (typeof CHILD_NAMES)[number]

/** The graphs by name. A graph that runs another comes after it. `parks` says that it waits for something on its way. */
export function childOf(name: ChildName, { tool, child }: Made): Child {
  switch (name) {
    case 'plain':
      return {
        parks: false,
        definition: chain(
          { id: 'double', type: 'transform', expression: { '*': [read('input.n'), 2] } },
          end('nodes.double.result'),
        ),
      }
    case 'calling':
      return {
        parks: false,
        definition: chain(
          { id: 'call', type: 'tool', tool_id: tool, input_mapping: { value: read('input.n') } },
          end('nodes.call.value', 3),
        ),
      }
    case 'branched':
      return {
        parks: false,
        definition: graph(
          [
            { id: 'side', type: 'condition', expression: { '>': [read('input.n'), 4] } },
            { id: 'high', type: 'transform', expression: 40, state_mapping: { 'state.side': read('output.result') } },
            { id: 'low', type: 'transform', expression: 20, state_mapping: { side: read('output.result') } },
            end('side'),
          ],
          [
            { from: 'side', to: 'high', condition: 'true' },
            { from: 'side', to: 'low', condition: 'false' },
            { from: 'high', to: 'end' },
            { from: 'low', to: 'end' },
          ],
        ),
      }
    case 'nested':
      return {
        parks: false,
        definition: chain(
          {
            id: 'inner',
            type: 'sub_orchestration',
            orchestration_id: child('plain'),
            input_mapping: { n: { '+': [read('input.n'), 1] } },
          },
          end('nodes.inner.end.result', 5),
        ),
      }
    case 'refused':
      return {
        parks: false,
        definition: chain(
          {
            id: 'call',
            type: 'tool',
            tool_id: tool,
            input_mapping: {
              value: read('input.n'),
              fail: { if: [{ '==': [{ '%': [read('input.n'), 5] }, 0] }, 1, 0] },
              status: 404,
            },
          },
          end('nodes.call.value', 7),
        ),
      }
    case 'asking':
      return {
        parks: true,
        definition: chain({ id: 'ask', type: 'human', prompt: 'How many?' }, end('nodes.ask.n', 9)),
      }
    case 'retried':
      return {
        parks: true,
        definition: chain(
          {
            id: 'call',
            type: 'tool',
            tool_id: tool,
            input_mapping: { value: read('input.n'), fail: 1, status: 503 },
            retry: { max_attempts: 3, backoff: { delay_ms: 5 } },
          },
          end('nodes.call.attempt', 11),
        ),
      }
    case 'delayed':
      return {
        parks: true,
        definition: chain({ id: 'wait', type: 'delay', duration: '8ms' }, end('input.n', 13)),
      }
  }
}
