import type { Values } from '#components/schema-form.tsx'
import { isObject } from '#json.ts'
import * as strings from '#strings.ts'
import { drawable, type Findings, findingsOf, NO_FINDINGS, newNames } from './definition.ts'
import type { GraphEdge, GraphNode } from './graph.tsx'

/** Returns the drawing of the states of a workflow: a transition from several states is an edge from each. */
export function workflowGraph(
  { states, transitions }: { states?: unknown; transitions?: unknown },
  findings: Findings = NO_FINDINGS,
): { nodes: GraphNode[]; edges: GraphEdge[] } {
  const atState = findingsOf('states', findings)
  const atTransition = findingsOf('transitions', findings)
  return {
    nodes: drawable(states, newNames('name')).map(({ entry, index }) => ({
      id: String(entry.name),
      ...stateType(entry),
      ...atState(index),
    })),
    edges: drawable(transitions, ({ from, to }) => Array.isArray(from) && typeof to === 'string').flatMap(
      ({ entry: { name, from, to }, index }) =>
        (from as unknown[])
          .filter(source => typeof source === 'string')
          .map(source => ({
            from: source,
            to: String(to),
            label: String(name ?? ''),
            mark: atTransition(index).mark,
            index,
          })),
    ),
  }
}

/** The type of a state as a node of a graph, with its facts. */
function stateType({ initial, terminal, kind, on_enter }: Values): { type: string; detail?: string } {
  const dispatch = isObject(on_enter) && isObject(on_enter.dispatch) ? on_enter.dispatch.kind : undefined
  const type =
    kind === 'human' ? 'human' : terminal === true ? 'terminal' : typeof dispatch === 'string' ? dispatch : 'state'
  const { kinds, dispatch: names } = strings.workflows
  const facts = [initial === true && kinds.initial, { ...names, human: kinds.human, terminal: kinds.terminal }[type]]
  return { type: type === 'state' && initial === true ? 'initial' : type, detail: facts.filter(Boolean).join(' · ') }
}
