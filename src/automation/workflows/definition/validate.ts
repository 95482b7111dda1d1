import { exceededLimits, FindingList, quoteName } from '#automation/orchestrations/definition/validate.ts'
import type { Problem } from '#core/base/errors.ts'
import { isObject, withDoubles } from '#core/base/exact-json.ts'
import { expressionProblem, operationOf } from '#core/expressions/evaluate.ts'
import {
  DISPATCH_KINDS,
  type DispatchKind,
  MAX_STATES,
  MAX_TRANSITIONS,
  MAX_WORKFLOW_BYTES,
  targetField,
} from './definition.ts'

/** A definition in a body, before validation. */
export type UncheckedWorkflow = { states: readonly unknown[]; transitions: readonly unknown[]; payload_schema: unknown }

/** Target of a dispatch, looked up in the project. */
export type DispatchTarget = { kind: DispatchKind; id: string; path: string; operation_id: unknown }

/** Limit of characters of state and transition names, which requests contain and indexes store. */
const MAX_NAME = 255

class Findings extends FindingList {
  readonly targets: DispatchTarget[] = []
}

const isText = (value: unknown): value is string => typeof value === 'string' && value.trim() !== ''
const isSet = (value: unknown): boolean => value !== undefined && value !== null
const inRange = (value: unknown, least: number, most: number): boolean => {
  const number = withDoubles(value)
  return typeof number === 'number' && Number.isFinite(number) && number >= least && number <= most
}

/**
 * Returns all problems of a definition and the targets of its dispatches. Targets and the schema are validated
 * separately (check.ts).
 */
export function validateWorkflow(definition: UncheckedWorkflow): { problems: Problem[]; targets: DispatchTarget[] } {
  const found = new Findings()
  const exceeded = limitProblems(definition)
  if (exceeded.length > 0) return { problems: exceeded, targets: [] }
  const { states, transitions, payload_schema } = definition
  const stateNames = namesOf(states, 'states', ['STATE_NAME_REQUIRED', 'DUPLICATE_STATE_NAME'], found)
  const transitionNames = namesOf(
    transitions,
    'transitions',
    ['TRANSITION_NAME_REQUIRED', 'DUPLICATE_TRANSITION_NAME'],
    found,
  )
  if (states.length === 0) found.problem('STATES_REQUIRED', 'states', 'must contain at least one state')
  const initials = states.filter(state => isObject(state) && state.initial === true).length
  if (initials !== 1)
    found.problem(
      'INITIAL_STATE_COUNT',
      'states',
      `must contain exactly one state with initial: true, contains ${initials}`,
    )
  for (const [index, state] of states.entries()) checkState(state, `states[${index}]`, transitionNames, found)
  for (const [index, transition] of transitions.entries())
    checkTransition(transition, `transitions[${index}]`, stateNames, found)
  if (isSet(payload_schema) && !isObject(payload_schema))
    found.problem('PAYLOAD_SCHEMA_INVALID', 'payload_schema', 'must be an object')
  return found
}

function limitProblems({ states, transitions, payload_schema }: UncheckedWorkflow): Problem[] {
  const bytes = Buffer.byteLength(JSON.stringify({ states, transitions, payload_schema }))
  return exceededLimits([
    ['states', 'items', states.length, MAX_STATES],
    ['transitions', 'items', transitions.length, MAX_TRANSITIONS],
    ['', 'bytes as JSON', bytes, MAX_WORKFLOW_BYTES],
  ])
}

/** Returns the names in a list; reports missing and duplicate names. */
function namesOf(
  items: readonly unknown[],
  path: string,
  [missing, duplicate]: readonly [string, string],
  found: Findings,
): ReadonlySet<string> {
  const names = new Set<string>()
  for (const [index, item] of items.entries()) {
    if (!isObject(item)) continue
    const { name } = item
    if (!isText(name)) found.problem(missing, `${path}[${index}].name`, 'must be a non-empty string')
    else if (names.has(name)) found.problem(duplicate, `${path}[${index}].name`, `is a duplicate: ${quoteName(name)}`)
    else {
      if (name.length > MAX_NAME)
        found.problem('LIMIT_EXCEEDED', `${path}[${index}].name`, `must have at most ${MAX_NAME} characters`)
      names.add(name)
    }
  }
  return names
}

function checkFlags(
  item: Record<string, unknown>,
  flags: readonly string[],
  code: string,
  path: string,
  found: Findings,
) {
  for (const flag of flags)
    if (item[flag] !== undefined && typeof item[flag] !== 'boolean')
      found.problem(code, `${path}.${flag}`, 'must be true or false')
}

function checkState(state: unknown, path: string, transitions: ReadonlySet<string>, found: Findings): void {
  if (!isObject(state)) {
    found.problem('STATE_FIELD_INVALID', path, 'must be an object')
    return
  }
  const { kind, on_enter, stalled_after, terminal } = state
  checkFlags(state, ['initial', 'terminal'], 'STATE_FIELD_INVALID', path, found)
  if (isSet(kind) && kind !== 'human') found.problem('STATE_KIND_INVALID', `${path}.kind`, 'must be human or null')
  if (isSet(stalled_after) && !(inRange(stalled_after, 0, 1e9) && stalled_after !== 0))
    found.problem('STALLED_AFTER_INVALID', `${path}.stalled_after`, 'must be a number of seconds above 0, at most 1e9')
  if (!isSet(on_enter)) return
  if (kind === 'human') found.problem('HUMAN_STATE_DISPATCH', `${path}.on_enter`, 'cannot be combined with kind human')
  if (terminal === true)
    found.problem('TERMINAL_STATE_DISPATCH', `${path}.on_enter`, 'is not allowed in a terminal state')
  if (!isObject(on_enter)) {
    found.problem('STATE_FIELD_INVALID', `${path}.on_enter`, 'must be an object')
    return
  }
  checkDispatch(on_enter.dispatch, `${path}.on_enter.dispatch`, found)
  checkRetry(on_enter.retry, `${path}.on_enter.retry`, found)
  checkRoutes(on_enter, `${path}.on_enter`, transitions, found)
}

function checkDispatch(dispatch: unknown, path: string, found: Findings): void {
  if (!isObject(dispatch)) {
    found.problem('DISPATCH_REQUIRED', path, 'must be an object')
    return
  }
  const { kind, operation_id } = dispatch
  for (const [name, code] of [
    ['input_mapping', 'INPUT_MAPPING_INVALID'],
    ['payload_writes', 'PAYLOAD_WRITES_INVALID'],
  ] as const) {
    const value = dispatch[name]
    const problem = isSet(value) && (isObject(value) ? expressionProblem(value) : 'must be an object')
    if (problem) found.problem(code, `${path}.${name}`, problem)
  }
  if (isSet(operation_id) && !isText(operation_id))
    found.problem('STATE_FIELD_INVALID', `${path}.operation_id`, 'must be a non-empty string')
  if (!DISPATCH_KINDS.includes(kind as never)) {
    found.problem('DISPATCH_KIND_INVALID', `${path}.kind`, `must be one of ${DISPATCH_KINDS.join(', ')}`)
    return
  }
  const field = targetField(kind as DispatchKind)
  const id = dispatch[field]
  if (!isText(id)) {
    found.problem('DISPATCH_TARGET_REQUIRED', `${path}.${field}`, `is required for kind ${kind}`)
    return
  }
  found.targets.push({ kind: kind as DispatchKind, id, path, operation_id })
}

function checkRetry(retry: unknown, path: string, found: Findings): void {
  if (!isSet(retry)) return
  if (!isObject(retry)) {
    found.problem('RETRY_INVALID', path, 'must be an object')
    return
  }
  const { max_attempts, backoff_seconds = 0, backoff_multiplier = 1 } = retry
  if (!Number.isInteger(withDoubles(max_attempts)) || !inRange(max_attempts, 1, 10))
    found.problem('RETRY_INVALID', `${path}.max_attempts`, 'must be an integer from 1 to 10')
  if (!inRange(backoff_seconds, 0, 3600))
    found.problem('RETRY_INVALID', `${path}.backoff_seconds`, 'must be a number from 0 to 3600')
  if (!inRange(backoff_multiplier, 1, 10))
    found.problem('RETRY_INVALID', `${path}.backoff_multiplier`, 'must be a number from 1 to 10')
}

function checkRoutes(
  { on_complete, on_failure }: Record<string, unknown>,
  path: string,
  transitions: ReadonlySet<string>,
  found: Findings,
): void {
  const checkName = (name: unknown, at: string) => {
    if (!isText(name)) found.problem('STATE_FIELD_INVALID', at, 'must be the name of a transition')
    else if (!transitions.has(name))
      found.problem('UNKNOWN_TRANSITION', at, `refers to a transition that does not exist: ${quoteName(name)}`)
  }
  if (isSet(on_failure)) checkName(on_failure, `${path}.on_failure`)
  if (!isSet(on_complete)) return
  if (!Array.isArray(on_complete)) {
    found.problem('STATE_FIELD_INVALID', `${path}.on_complete`, 'must be an array')
    return
  }
  for (const [index, rule] of on_complete.entries()) {
    const at = `${path}.on_complete[${index}]`
    if (!isObject(rule)) {
      found.problem('STATE_FIELD_INVALID', at, 'must be an object')
      continue
    }
    const problem = rule.when === undefined ? 'is required' : expressionProblem(rule.when)
    if (problem) found.problem('STATE_FIELD_INVALID', `${at}.when`, problem)
    checkName(rule.transition, `${at}.transition`)
  }
}

function checkTransition(transition: unknown, path: string, states: ReadonlySet<string>, found: Findings): void {
  if (!isObject(transition)) {
    found.problem('TRANSITION_FIELD_INVALID', path, 'must be an object')
    return
  }
  const { from, to, guard } = transition
  checkFlags(transition, ['requires_approval'], 'TRANSITION_FIELD_INVALID', path, found)
  if (!Array.isArray(from) || from.length === 0)
    found.problem('TRANSITION_FROM_REQUIRED', `${path}.from`, 'must list at least one state')
  else for (const [index, name] of from.entries()) checkNamesState(name, `${path}.from[${index}]`, states, found)
  checkNamesState(to, `${path}.to`, states, found)
  if (!isSet(guard)) return
  if (!isObject(guard) || operationOf(guard) === null)
    found.problem('GUARD_MALFORMED', `${path}.guard`, 'must be an object with an operator as its only key')
  else {
    const problem = expressionProblem(guard)
    if (problem) found.problem('GUARD_MALFORMED', `${path}.guard`, problem)
  }
}

function checkNamesState(name: unknown, path: string, states: ReadonlySet<string>, found: Findings): void {
  if (typeof name === 'string' && states.has(name)) return
  found.problem(
    'UNKNOWN_STATE',
    path,
    typeof name === 'string'
      ? `refers to a state that does not exist: ${quoteName(name)}`
      : 'must be the name of a state',
  )
}
