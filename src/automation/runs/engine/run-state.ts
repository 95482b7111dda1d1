import { AppError } from '../../../core/api/errors.ts'
import { storableValue } from '../../../core/api/storable-text.ts'
import {
  type EvaluationBudget,
  ExpressionError,
  evaluate,
  freshBudget,
  isObject,
} from '../../../core/expressions/evaluate.ts'
import { evaluateMapping } from '../../../core/expressions/mapping.ts'
import type { Node } from '../../orchestrations/model.ts'
import { statePath } from '../../orchestrations/state-paths.ts'
import type { RunRow } from '../model.ts'
import { longWorkState } from '../model.ts'

/** What a run and its nodes may hold, in bytes of JSON. */
export const MAX_RUN_INPUT_BYTES = 1024 * 1024
export const MAX_ARTIFACT_BYTES = 1024 * 1024
export const MAX_STATE_BYTES = 4 * 1024 * 1024
/** What the nodes that are open hold together: inputs, and outcomes that are not applied. */
export const MAX_OPEN_BYTES = 16 * 1024 * 1024

export type NodeFailureReason =
  | 'missing_field'
  | 'unknown_type'
  | 'expression'
  | 'input_schema'
  | 'too_large'
  | 'timeout'
  | 'content'

/** What expressions of nodes read. */
export type ExpressionState = { input: unknown; nodes: Record<string, unknown> }

/** The failure of a node that only the engine can name. */
export const nodeFailed = (
  { id }: Pick<Node, 'id'>,
  reason: NodeFailureReason,
  message: string,
  more: Record<string, unknown> = {},
): AppError => new AppError('ORCHESTRATION_NODE_FAILED', { message, meta: { node_id: id, ...more, reason } })

/**
 * The value of an expression of a node.
 * @param spent what other expressions of the same mapping have cost
 * @throws ORCHESTRATION_NODE_FAILED (expression)
 */
export function evaluateValue(
  node: Pick<Node, 'id'>,
  field: string,
  expression: unknown,
  root: unknown,
  spent?: EvaluationBudget,
): unknown {
  try {
    return evaluate(expression, root, spent)
  } catch (error) {
    if (!(error instanceof ExpressionError)) throw error
    throw expressionFailed(node, field, error)
  }
}

const expressionFailed = (node: Pick<Node, 'id'>, field: string, { message }: ExpressionError): AppError =>
  nodeFailed(node, 'expression', `The expression of ${field} ${message}`, { field })

/**
 * A mapping of keys to expressions, evaluated: they share one budget, and their values are no larger than a state.
 * @throws ORCHESTRATION_NODE_FAILED (expression, too_large)
 */
export function mapState(
  node: Pick<Node, 'id'>,
  field: string,
  mapping: Record<string, unknown> | null | undefined,
  root: unknown,
): Record<string, unknown> {
  return evaluateMapping(mapping, root, {
    bytes: MAX_STATE_BYTES,
    tooLarge: () => nodeFailed(node, 'too_large', `${field} gives more than 4 MiB`),
    failed: (key, error) => expressionFailed(node, `${field}.${key}`, error),
  })
}

/** A text that a node says itself, or an expression for one; other values as JSON. Null without one. */
export function evaluateText(node: Pick<Node, 'id'>, field: string, expression: unknown, root: unknown): string | null {
  if (expression === null || expression === undefined) return null
  const value = evaluateValue(node, field, expression, root)
  return value === null ? null : typeof value === 'string' ? value : JSON.stringify(value)
}

/** What a condition compares its edges with. Raises for a value without a text of its own. */
export function labelOf(node: Pick<Node, 'id'>, value: unknown): string {
  if (typeof value === 'object' && value !== null)
    throw nodeFailed(node, 'expression', 'The expression of a condition gives no object or array', {
      field: 'expression',
    })
  return String(value)
}

export const jsonBytes = (value: unknown): number => Buffer.byteLength(JSON.stringify(value) ?? '')

/** A result as an artifact: an object as it is, anything else below `result`. */
export const toArtifact = (result: unknown): Record<string, unknown> => (isObject(result) ? result : { result })

/**
 * A value as it can be kept as an artifact.
 * @throws ORCHESTRATION_NODE_FAILED (too_large)
 */
export function storableArtifact(node: Pick<Node, 'id'>, value: unknown): unknown {
  const kept = storableValue(value)
  if (jsonBytes(kept) > MAX_ARTIFACT_BYTES) throw nodeFailed(node, 'too_large', 'The artifact is larger than 1 MiB')
  return kept
}

/** Values that a node writes into the state of its run, and where. */
export type StateWrites = { path: string[]; value: unknown }[]

/**
 * What a completed node writes: keys apply in their order and see what earlier ones wrote. The run is left as it is.
 * @param artifact what the node came to, which is in `nodes` already
 * @throws ORCHESTRATION_NODE_FAILED (expression, too_large)
 */
export function stateWritesOf(
  node: Node,
  run: Pick<RunRow, 'input' | 'outcomes' | 'written'>,
  artifact: unknown,
): StateWrites {
  const mapping = Object.entries(node.state_mapping ?? {})
  if (mapping.length === 0) return []
  let state: Record<string, unknown> = longWorkState(run)
  const spent = freshBudget()
  let left = MAX_STATE_BYTES
  return mapping.flatMap(([key, expression]) => {
    const path = statePath(key)
    if (!path) return []
    const value = evaluateValue(node, `state_mapping.${key}`, expression, { output: artifact, state }, spent)
    left -= jsonBytes(value)
    if (left < 0) throw nodeFailed(node, 'too_large', 'state_mapping writes more than 4 MiB')
    state = withValue(state, path, value)
    return [{ path, value }]
  })
}

export const isTooLarge = (run: Pick<RunRow, 'input' | 'outcomes' | 'written'>): boolean =>
  jsonBytes(longWorkState(run)) > MAX_STATE_BYTES

/** State with a value at a path: objects on the way are made anew, and everything that is not on it is shared. */
export function withValue(
  root: Record<string, unknown>,
  [segment, ...rest]: readonly string[],
  value: unknown,
): Record<string, unknown> {
  if (rest.length === 0) return { ...root, [segment]: value }
  const inner = Object.hasOwn(root, segment) ? root[segment] : undefined
  return { ...root, [segment]: withValue(isObject(inner) ? inner : {}, rest, value) }
}
