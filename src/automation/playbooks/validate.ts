import type { Problem } from '../../core/api/errors.ts'
import { validationProblems } from '../../core/api/validate.ts'
import { expressionProblem, isObject, isReservedName, operationOf } from '../../core/expressions/evaluate.ts'
import { pathsOf, unknownOperators } from '../../core/expressions/references.ts'
import { FindingList, isMissing, quoteName } from '../orchestrations/validate.ts'
import { patternProblem } from '../triggers/events.ts'
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
const COMMON: readonly string[] = ['key', 'title', 'type']
const KNOWN = new Set([...COMMON, ...stepFields.map(([name]) => name)])

/** Where each key stands. Of those that are given twice the first counts. */
type Places = ReadonlyMap<string, number>

/**
 * Everything that is wrong with a playbook, at once. Whether its schemas compile and what it names exists is found out
 * elsewhere (check.ts, references.ts).
 */
export function validatePlaybook(definition: PlaybookDefinition): Problem[] {
  const beyond = playbookLimitProblems(definition)
  if (beyond.length > 0) return beyond
  const found = new FindingList()
  const { steps, outcome } = definition
  if (steps.length === 0) found.problem('STEPS_REQUIRED', 'steps', 'must have at least one step')
  const places = new Map<string, number>()
  for (const [index, { key }] of steps.entries())
    if (typeof key === 'string' && !places.has(key)) places.set(key, index)
  for (const [index, step] of steps.entries()) checkStep(step, index, places, found)
  const wrong = found.problems.length
  for (const [index, step] of steps.entries()) checkTargets(step, index, places, found)
  if (found.problems.length === wrong && places.size === steps.length) checkReach(steps, places, found)
  checkOutcome(outcome, places, steps.length, found)
  for (const name of ['case_schema', 'input_schema'] as const) {
    const schema: unknown = definition[name]
    if (schema != null && !isObject(schema)) found.problem('SCHEMA_INVALID', name, 'must be an object')
  }
  return found.problems
}

/** Why a definition is larger than any may be; what else is wrong with such a one is not looked for. */
export function playbookLimitProblems(definition: PlaybookDefinition): Problem[] {
  const { steps } = definition
  const bytes = Buffer.byteLength(JSON.stringify(definition))
  const counts: [path: string, what: string, has: number, most: number][] = [
    ['steps', 'items', steps.length, MAX_STEPS],
    ['', 'bytes as JSON', bytes, MAX_DEFINITION_BYTES],
  ]
  return counts.flatMap(([path, what, has, most]) =>
    has > most ? [{ code: 'LIMIT_EXCEEDED', path, message: `must have at most ${most} ${what}, but has ${has}` }] : [],
  )
}

function checkStep(step: PlaybookStep, index: number, places: Places, found: FindingList): void {
  const at = `steps[${index}]`
  const { key, title, type } = step as { key: unknown; title: unknown; type: unknown }
  if (typeof key !== 'string' || !STEP_KEY.test(key) || RESERVED_KEYS.includes(key) || key.endsWith('__when'))
    found.problem(
      'STEP_KEY_INVALID',
      `${at}.key`,
      'must be 1 to 63 lower-case letters, digits and _, from a letter, neither end nor fail, and not end in __when',
    )
  else if (places.get(key) !== index)
    found.problem('STEP_KEY_DUPLICATE', `${at}.key`, `is the key of steps[${places.get(key)}] too: ${key}`)
  if (typeof title !== 'string' || title.trim() === '')
    found.problem('STEP_TITLE_REQUIRED', `${at}.title`, 'is required')
  else if (title.length > 200) found.problem('STEP_FIELD_INVALID', `${at}.title`, 'must have at most 200 characters')
  const isType = STEP_TYPES.includes(type as never)
  if (!isType) found.problem('STEP_TYPE_INVALID', `${at}.type`, `must be one of ${STEP_TYPES.join(', ')}`)
  for (const name of Object.keys(step))
    if (!KNOWN.has(name)) found.problem('STEP_FIELD_UNKNOWN', `${at}.${quoteName(name)}`, 'is not a field of steps')
  for (const [name, field] of stepFields) {
    const value = (step as Record<string, unknown>)[name]
    const path = `${at}.${name}`
    if (field.types && !(field.types as readonly unknown[]).includes(type)) {
      if (value != null && isType)
        found.problem('STEP_FIELD_UNKNOWN', path, `is not a field of steps of type ${type as string}`)
    } else if (field.required && isMissing(value))
      found.problem('STEP_FIELD_REQUIRED', path, `is required for steps of type ${type as string}`)
    else if (value != null) checkField(field, value, path, { index, places, found })
  }
  if (type === 'wait') {
    const [first, second] = (['duration_seconds', 'until', 'event'] as const).filter(name => step[name] != null)
    if (!first) found.problem('STEP_FIELD_REQUIRED', `${at}.duration_seconds`, 'or until or event is required')
    if (second) found.problem('STEP_FIELD_INVALID', `${at}.${second}`, `cannot be given with ${first}`)
    checkEvent(step.event, `${at}.event`, { index, places, found })
  }
  if (Array.isArray(step.rules))
    for (const [number, rule] of step.rules.entries())
      if (isObject(rule)) checkExpression(rule.when, `${at}.rules[${number}].when`, { index, places, found })
}

type At = { index: number; places: Places; found: FindingList }

function checkField(field: StepField, value: unknown, path: string, at: At): void {
  const wrong = validationProblems(field.schema, value, path)
  for (const problem of wrong)
    at.found.problem(field.code ?? 'STEP_FIELD_INVALID', quoteName(problem.path), problem.message)
  if (wrong.length > 0 || !field.expression) return
  if (field.expression === 'expression') checkExpression(value, path, at)
  else if (field.expression === 'text') {
    if (typeof value !== 'string') checkExpression(value, path, at)
  } else if (isObject(value))
    for (const [key, entry] of Object.entries(value)) {
      const place = `${path}.${quoteName(key)}`
      if (path.endsWith('case_writes') && (key === '' || isReservedName(key)))
        at.found.problem('STEP_FIELD_INVALID', place, 'is no key that can be written')
      checkReads(entry, place, at)
    }
}

function checkEvent(event: unknown, path: string, at: At): void {
  if (!isObject(event)) return
  const wrong = typeof event.pattern === 'string' && event.pattern !== '' ? patternProblem(event.pattern) : null
  if (wrong !== null) at.found.problem('STEP_FIELD_INVALID', `${path}.pattern`, wrong)
  if (event.filter != null) checkExpression(event.filter, `${path}.filter`, at)
}

/** What has to be an expression itself. */
function checkExpression(value: unknown, path: string, at: At): void {
  if (operationOf(value) === null) {
    const [name] = unknownOperators(value)
    const message = name === undefined ? 'must be an expression' : `names no operator: ${quoteName(name)}`
    at.found.problem('EXPRESSION_MALFORMED', path, message)
  } else checkReads(value, path, at)
}

/** What an expression, or a literal with expressions in it, reads: only steps that come before. */
function checkReads(value: unknown, path: string, { index, places, found }: At): void {
  const unusable = typeof value === 'object' && value !== null ? expressionProblem(value) : null
  if (unusable) {
    found.problem('STEP_FIELD_INVALID', path, unusable)
    return
  }
  const missing = new Set<string>()
  for (const read of pathsOf(value)) {
    const [root, key] = read.split('.')
    if (root !== 'steps' || key === undefined) continue
    const place = places.get(key)
    if (place === undefined || place >= index) missing.add(key)
  }
  for (const key of missing)
    found.problem('STEP_OUTPUT_UNAVAILABLE', path, `reads a step that does not come before: ${quoteName(key)}`)
}

function checkTargets(step: PlaybookStep, index: number, places: Places, found: FindingList): void {
  const at = `steps[${index}]`
  const check = (field: string, target: unknown, allowed: readonly string[]) => {
    if (typeof target !== 'string' || allowed.includes(target)) return
    const place = places.get(target)
    if (place === undefined || RESERVED_KEYS.includes(target))
      found.problem('TARGET_UNKNOWN', `${at}.${field}`, `names no step: ${quoteName(target)}`)
    else if (place <= index)
      found.problem(
        'TARGET_NOT_FORWARD',
        `${at}.${field}`,
        `names a step that does not come later: ${quoteName(target)}`,
      )
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

/** The steps that a path leads to. Targets point forward, so one pass in their order is enough. */
function checkReach(steps: readonly PlaybookStep[], places: Places, found: FindingList): void {
  const reached = new Set<number>([0])
  for (const [index, step] of steps.entries()) {
    if (!reached.has(index)) {
      found.problem('STEP_UNREACHABLE', `steps[${index}]`, 'is reached on no path')
      continue
    }
    for (const target of followersOf(steps, index)) {
      const place = places.get(target)
      if (place !== undefined) reached.add(place)
    }
    if (!STEP_TYPES.includes(step.type)) reached.add(index + 1)
  }
}

function followersOf(steps: readonly PlaybookStep[], index: number): string[] {
  const step = steps[index]
  if (step.type === 'branch') {
    const rules = Array.isArray(step.rules) ? step.rules.flatMap(rule => rule?.go_to ?? []) : []
    // With a condition the step behind it follows where that is false.
    return [...rules, fallbackOf(steps, index), ...(step.when == null ? [] : [nextStepOf(steps, index)])]
  }
  return [nextStepOf(steps, index), step.on_failure, step.on_rejected, step.on_expired].filter(
    target => typeof target === 'string',
  )
}

function checkOutcome(outcome: unknown, places: Places, count: number, found: FindingList): void {
  if (outcome == null) return
  if (typeof outcome === 'string') {
    if (outcome.length > MAX_OUTCOME)
      found.problem('STEP_FIELD_INVALID', 'outcome', `must have at most ${MAX_OUTCOME} characters`)
  } else checkExpression(outcome, 'outcome', { index: count, places, found })
}
