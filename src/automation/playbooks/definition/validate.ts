import { exceededLimits, FindingList, isMissing, quoteName } from '#automation/orchestrations/definition/validate.ts'
import { patternProblem } from '#automation/triggers/events.ts'
import { validationProblems } from '#core/api/validate.ts'
import type { Problem } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import { expressionProblem, isReservedName, operationOf } from '#core/expressions/evaluate.ts'
import { pathsOf, unknownOperators } from '#core/expressions/references.ts'
import {
  END,
  FAIL,
  fallbackOf,
  nextStepOf,
  type PlaybookDefinition,
  type PlaybookStep,
  RESERVED_KEYS,
  STEP_TYPES,
} from './definition.ts'
import { type StepField, stepFields } from './fields.ts'

const MAX_STEPS = 100
const MAX_DEFINITION_BYTES = 256 * 1024
const MAX_OUTCOME = 255

const STEP_KEY = /^[a-z][a-z0-9_]{0,62}$/
const COMMON_FIELDS: readonly string[] = ['key', 'title', 'type']
const FIELD_NAMES = new Set([...COMMON_FIELDS, ...stepFields.map(([name]) => name)])

/** Position of each step key; of duplicate keys the first counts. */
type KeyPositions = ReadonlyMap<string, number>

/** Returns all problems of a playbook. Schemas and references are validated separately (check.ts, references.ts). */
export function validatePlaybook(definition: PlaybookDefinition): Problem[] {
  const limitProblems = playbookLimitProblems(definition)
  if (limitProblems.length > 0) return limitProblems
  const found = new FindingList()
  const { steps, outcome } = definition
  if (steps.length === 0) found.problem('STEPS_REQUIRED', 'steps', 'must have at least one step')
  const positions = new Map<string, number>()
  for (const [index, { key }] of steps.entries())
    if (typeof key === 'string' && !positions.has(key)) positions.set(key, index)
  for (const [index, step] of steps.entries()) checkStep(step, index, positions, found)
  const problems = found.problems.length
  for (const [index, step] of steps.entries()) checkTargets(step, index, positions, found)
  if (found.problems.length === problems && positions.size === steps.length) checkReach(steps, positions, found)
  checkOutcome(outcome, positions, steps.length, found)
  for (const name of ['case_schema', 'input_schema'] as const) {
    const schema: unknown = definition[name]
    if (schema != null && !isObject(schema)) found.problem('SCHEMA_INVALID', name, 'must be an object')
  }
  return found.problems
}

/** Returns the size problems of a definition; a definition above a limit is not validated further. */
export function playbookLimitProblems(definition: PlaybookDefinition): Problem[] {
  const { steps } = definition
  const bytes = Buffer.byteLength(JSON.stringify(definition))
  return exceededLimits([
    ['steps', 'items', steps.length, MAX_STEPS],
    ['', 'bytes as JSON', bytes, MAX_DEFINITION_BYTES],
  ])
}

function checkStep(step: PlaybookStep, index: number, positions: KeyPositions, found: FindingList): void {
  const at = `steps[${index}]`
  const { key, title, type } = step as { key: unknown; title: unknown; type: unknown }
  if (typeof key !== 'string' || !STEP_KEY.test(key) || RESERVED_KEYS.includes(key) || key.endsWith('__when'))
    found.problem(
      'STEP_KEY_INVALID',
      `${at}.key`,
      'must be 1 to 63 lower-case letters, digits and _, start with a letter, not end in __when, and not be end or fail',
    )
  else if (positions.get(key) !== index)
    found.problem('STEP_KEY_DUPLICATE', `${at}.key`, `is a duplicate of steps[${positions.get(key)}].key: ${key}`)
  if (typeof title !== 'string' || title.trim() === '')
    found.problem('STEP_TITLE_REQUIRED', `${at}.title`, 'is required')
  else if (title.length > 200) found.problem('STEP_FIELD_INVALID', `${at}.title`, 'must have at most 200 characters')
  const isType = STEP_TYPES.includes(type as never)
  if (!isType) found.problem('STEP_TYPE_INVALID', `${at}.type`, `must be one of ${STEP_TYPES.join(', ')}`)
  for (const name of Object.keys(step))
    if (!FIELD_NAMES.has(name))
      found.problem('STEP_FIELD_UNKNOWN', `${at}.${quoteName(name)}`, 'is not a field of steps')
  for (const [name, field] of stepFields) {
    const value = (step as Record<string, unknown>)[name]
    const path = `${at}.${name}`
    if (field.types && !(field.types as readonly unknown[]).includes(type)) {
      if (value != null && isType)
        found.problem('STEP_FIELD_UNKNOWN', path, `is not a field of steps of type ${type as string}`)
    } else if (field.required && isMissing(value))
      found.problem('STEP_FIELD_REQUIRED', path, `is required for steps of type ${type as string}`)
    else if (value != null) checkField(field, value, path, { index, positions, found })
  }
  if (type === 'wait') {
    const [first, second] = (['duration_seconds', 'until', 'event'] as const).filter(name => step[name] != null)
    if (!first)
      found.problem('STEP_FIELD_REQUIRED', `${at}.duration_seconds`, 'is required if neither until nor event is set')
    if (second) found.problem('STEP_FIELD_INVALID', `${at}.${second}`, `cannot be combined with ${first}`)
    checkEvent(step.event, `${at}.event`, { index, positions, found })
  }
  if (Array.isArray(step.rules))
    for (const [number, rule] of step.rules.entries())
      if (isObject(rule)) checkExpression(rule.when, `${at}.rules[${number}].when`, { index, positions, found })
}

type StepContext = { index: number; positions: KeyPositions; found: FindingList }

function checkField(field: StepField, value: unknown, path: string, context: StepContext): void {
  const problems = validationProblems(field.schema, value, path)
  for (const problem of problems)
    context.found.problem(field.code ?? 'STEP_FIELD_INVALID', quoteName(problem.path), problem.message)
  if (problems.length > 0 || !field.expression) return
  if (field.expression === 'expression') checkExpression(value, path, context)
  else if (field.expression === 'text') {
    if (typeof value !== 'string') checkExpression(value, path, context)
  } else if (isObject(value))
    for (const [key, entry] of Object.entries(value)) {
      const entryPath = `${path}.${quoteName(key)}`
      if (path.endsWith('case_writes') && (key === '' || isReservedName(key)))
        context.found.problem('STEP_FIELD_INVALID', entryPath, 'contains an invalid key')
      checkReads(entry, entryPath, context)
    }
}

function checkEvent(event: unknown, path: string, context: StepContext): void {
  if (!isObject(event)) return
  const problem = typeof event.pattern === 'string' && event.pattern !== '' ? patternProblem(event.pattern) : null
  if (problem !== null) context.found.problem('STEP_FIELD_INVALID', `${path}.pattern`, problem)
  if (event.filter != null) checkExpression(event.filter, `${path}.filter`, context)
}

/** Checks a value that must be an expression. */
function checkExpression(value: unknown, path: string, context: StepContext): void {
  if (operationOf(value) === null) {
    const [name] = unknownOperators(value)
    const message = name === undefined ? 'must be an expression' : `has an unknown operator: ${quoteName(name)}`
    context.found.problem('EXPRESSION_MALFORMED', path, message)
  } else checkReads(value, path, context)
}

/** Checks the reads of an expression, or of a literal with expressions: only earlier steps may be read. */
function checkReads(value: unknown, path: string, { index, positions, found }: StepContext): void {
  const problem = typeof value === 'object' && value !== null ? expressionProblem(value) : null
  if (problem) {
    found.problem('STEP_FIELD_INVALID', path, problem)
    return
  }
  const missing = new Set<string>()
  for (const read of pathsOf(value)) {
    const [root, key] = read.split('.')
    if (root !== 'steps' || key === undefined) continue
    const position = positions.get(key)
    if (position === undefined || position >= index) missing.add(key)
  }
  for (const key of missing)
    found.problem('STEP_OUTPUT_UNAVAILABLE', path, `reads a step that is not earlier: ${quoteName(key)}`)
}

function checkTargets(step: PlaybookStep, index: number, positions: KeyPositions, found: FindingList): void {
  const at = `steps[${index}]`
  const check = (field: string, target: unknown, allowed: readonly string[]) => {
    if (typeof target !== 'string' || allowed.includes(target)) return
    const position = positions.get(target)
    if (position === undefined || RESERVED_KEYS.includes(target))
      found.problem('TARGET_UNKNOWN', `${at}.${field}`, `refers to a step that does not exist: ${quoteName(target)}`)
    else if (position <= index)
      found.problem('TARGET_NOT_FORWARD', `${at}.${field}`, `refers to a step that is not later: ${quoteName(target)}`)
  }
  if (step.type === 'branch') {
    if (Array.isArray(step.rules))
      for (const [number, rule] of step.rules.entries())
        if (isObject(rule)) check(`rules[${number}].go_to`, rule.go_to, [END])
    check('otherwise', step.otherwise, [END])
    return
  }
  check('next', step.next, [END])
  check('on_failure', step.on_failure, [FAIL, 'continue'])
  if (step.type !== 'require_approval') return
  check('on_rejected', step.on_rejected, [FAIL, END])
  check('on_expired', step.on_expired, [FAIL, END])
}

/** Checks that every step is reachable. Targets are later steps, so one pass in order suffices. */
function checkReach(steps: readonly PlaybookStep[], positions: KeyPositions, found: FindingList): void {
  const reached = new Set<number>([0])
  for (const [index, step] of steps.entries()) {
    if (!reached.has(index)) {
      found.problem('STEP_UNREACHABLE', `steps[${index}]`, 'is not reachable')
      continue
    }
    for (const target of followersOf(steps, index)) {
      const position = positions.get(target)
      if (position !== undefined) reached.add(position)
    }
    if (!STEP_TYPES.includes(step.type)) reached.add(index + 1)
  }
}

function followersOf(steps: readonly PlaybookStep[], index: number): string[] {
  const step = steps[index]
  if (step.type === 'branch') {
    const rules = Array.isArray(step.rules) ? step.rules.flatMap(rule => rule?.go_to ?? []) : []
    // If the condition of a step is false, its next step follows.
    return [...rules, fallbackOf(steps, index), ...(step.when == null ? [] : [nextStepOf(steps, index)])]
  }
  return [nextStepOf(steps, index), step.on_failure, step.on_rejected, step.on_expired].filter(
    target => typeof target === 'string',
  )
}

function checkOutcome(outcome: unknown, positions: KeyPositions, count: number, found: FindingList): void {
  if (outcome == null) return
  if (typeof outcome === 'string') {
    if (outcome.length > MAX_OUTCOME)
      found.problem('STEP_FIELD_INVALID', 'outcome', `must have at most ${MAX_OUTCOME} characters`)
  } else checkExpression(outcome, 'outcome', { index: count, positions, found })
}
