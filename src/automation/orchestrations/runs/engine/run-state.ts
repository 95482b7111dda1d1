import type { Node } from '#automation/orchestrations/definition/model.ts'
import { statePath } from '#automation/orchestrations/definition/state-paths.ts'
import { AppError } from '#core/base/errors.ts'
import { ExactNumber, isObject } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { storableValue } from '#core/base/storable-text.ts'
import { type EvaluationBudget, ExpressionError, freshBudget } from '#core/expressions/evaluate.ts'
import { evaluate, evaluateMapping } from '#core/expressions/evaluation.ts'
import type { RunRow } from '../model.ts'
import { longWorkState } from '../model.ts'

/** Limits of a run and its nodes, in bytes of JSON. */
export const MAX_RUN_INPUT_BYTES = 1024 * 1024
export const MAX_ARTIFACT_BYTES = 1024 * 1024
export const MAX_STATE_BYTES = 4 * 1024 * 1024
/** Limit of the open node executions of a run together: inputs and unapplied outcomes. */
export const MAX_OPEN_BYTES = 16 * 1024 * 1024

export type NodeFailureReason =
  | 'missing_field'
  | 'unknown_type'
  | 'expression'
  | 'input_schema'
  | 'too_large'
  | 'timeout'
  | 'content'

/** Values that expressions of nodes read. */
export type ExpressionState = { input: unknown; nodes: Record<string, unknown> }

/** Returns a node failure raised by the engine itself. */
export const nodeFailed = (
  { id }: Pick<Node, 'id'>,
  reason: NodeFailureReason,
  message: string,
  details: Record<string, unknown> = {},
): AppError => new AppError('ORCHESTRATION_NODE_FAILED', { message, meta: { node_id: id, ...details, reason } })

/** Where expressions of a run are evaluated, and the project whose share of the threads they use. */
export type ExpressionScope = { services: Services; project_id: string }

/**
 * Evaluates an expression of a node.
 * @param spent budget shared with other expressions of the same mapping
 * @throws ORCHESTRATION_NODE_FAILED (expression), SERVICE_NOT_READY if no thread is free
 */
export async function evaluateValue(
  { services, project_id }: ExpressionScope,
  node: Pick<Node, 'id'>,
  field: string,
  expression: unknown,
  root: unknown,
  spent?: EvaluationBudget,
): Promise<unknown> {
  try {
    return await evaluate(services, project_id, expression, root, { spent })
  } catch (error) {
    if (!(error instanceof ExpressionError)) throw error
    throw expressionFailed(node, field, error)
  }
}

const expressionFailed = (node: Pick<Node, 'id'>, field: string, { message }: ExpressionError): AppError =>
  nodeFailed(node, 'expression', `Expression ${field} ${message}`, { field })

/**
 * Evaluates a mapping of keys to expressions. They share one budget; the values are limited to the size of a state.
 * @throws ORCHESTRATION_NODE_FAILED (expression, too_large), SERVICE_NOT_READY if no thread is free
 */
export const mapState = (
  { services, project_id }: ExpressionScope,
  node: Pick<Node, 'id'>,
  field: string,
  mapping: Record<string, unknown> | null | undefined,
  root: unknown,
): Promise<Record<string, unknown>> =>
  evaluateMapping(services, project_id, mapping, root, {
    bytes: MAX_STATE_BYTES,
    tooLarge: () => nodeFailed(node, 'too_large', `Result of ${field} exceeds 4 MiB`),
    failed: (key, error) => expressionFailed(node, `${field}.${key}`, error),
  })

/** Evaluates a literal text or an expression; values other than text become JSON. Null without an expression. */
export async function evaluateText(
  scope: ExpressionScope,
  node: Pick<Node, 'id'>,
  field: string,
  expression: unknown,
  root: unknown,
): Promise<string | null> {
  if (expression === null || expression === undefined) return null
  const value = await evaluateValue(scope, node, field, expression, root)
  return value === null ? null : typeof value === 'string' ? value : JSON.stringify(value)
}

/**
 * Returns the label that the edges of a condition are compared with.
 * @throws ORCHESTRATION_NODE_FAILED for objects and arrays
 */
export function labelOf(node: Pick<Node, 'id'>, value: unknown): string {
  if (value instanceof ExactNumber) return String(value.toNumber() ?? value)
  if (typeof value === 'object' && value !== null)
    throw nodeFailed(node, 'expression', 'Result of a condition expression must not be an object or array', {
      field: 'expression',
    })
  return String(value)
}

export const jsonBytes = (value: unknown): number => Buffer.byteLength(JSON.stringify(value) ?? '')

/** Returns a result as an artifact: objects unchanged, other values under the key `result`. */
export const toArtifact = (result: unknown): Record<string, unknown> => (isObject(result) ? result : { result })

/**
 * Returns a value in the form in which an artifact is stored.
 * @throws ORCHESTRATION_NODE_FAILED (too_large)
 */
export function storableArtifact(node: Pick<Node, 'id'>, value: unknown): unknown {
  const stored = storableValue(value)
  if (jsonBytes(stored) > MAX_ARTIFACT_BYTES) throw nodeFailed(node, 'too_large', 'Artifact exceeds 1 MiB')
  return stored
}

/** Values that a node writes into the state of its run, with their paths. */
export type StateWrites = { path: string[]; value: unknown }[]

/**
 * Returns the state writes of a completed node. Keys apply in order and see the writes of earlier keys; the run is not
 * modified.
 * @param artifact result of the node, already part of `nodes`
 * @throws ORCHESTRATION_NODE_FAILED (expression, too_large), SERVICE_NOT_READY if no thread is free
 */
export async function stateWritesOf(
  scope: ExpressionScope,
  node: Node,
  run: Pick<RunRow, 'input' | 'outcomes' | 'written'>,
  artifact: unknown,
): Promise<StateWrites> {
  const mapping = Object.entries(node.state_mapping ?? {})
  if (mapping.length === 0) return []
  let state: Record<string, unknown> = longWorkState(run)
  const spent = freshBudget()
  let remaining = MAX_STATE_BYTES
  const writes: StateWrites = []
  for (const [key, expression] of mapping) {
    const path = statePath(key)
    if (!path) continue
    const root = { output: artifact, state }
    const value = await evaluateValue(scope, node, `state_mapping.${key}`, expression, root, spent)
    remaining -= jsonBytes(value)
    if (remaining < 0) throw nodeFailed(node, 'too_large', 'Values of state_mapping exceed 4 MiB')
    state = withValue(state, path, value)
    writes.push({ path, value })
  }
  return writes
}

export const isTooLarge = (run: Pick<RunRow, 'input' | 'outcomes' | 'written'>): boolean =>
  jsonBytes(longWorkState(run)) > MAX_STATE_BYTES

/** Returns a state with a value at a path. Objects on the path are copied, all others are shared. */
export function withValue(
  root: Record<string, unknown>,
  [segment, ...rest]: readonly string[],
  value: unknown,
): Record<string, unknown> {
  if (rest.length === 0) return { ...root, [segment]: value }
  const inner = Object.hasOwn(root, segment) ? root[segment] : undefined
  return { ...root, [segment]: withValue(isObject(inner) ? inner : {}, rest, value) }
}
