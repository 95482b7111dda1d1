import { parseExactJson } from '../base/exact-json.ts'
import type { Services } from '../base/services.ts'
import { threadTask } from '../threads/pool.ts'
import { threads } from '../threads/threads.ts'
import {
  briefLimits,
  briefShareOf,
  type EvaluationBudget,
  type EvaluationOutcome,
  type EvaluationRequest,
  ExpressionError,
  evaluateWithin,
  exhaustedBudget,
  freshBudget,
  NotBriefError,
  requireValues,
  type Strictness,
} from './evaluate.ts'
import { readPartOf } from './references.ts'
import type * as expressionTask from './task.ts'

const task = threadTask<typeof expressionTask>('expressions', new URL('./task.ts', import.meta.url))

/** Longest wait for a thread: evaluations may wait in a transaction. */
const WAIT_MS = 10_000

type Options = {
  /** Budget shared with other evaluations. */
  spent?: EvaluationBudget
  /** Handling of missing values and values of an unexpected type. */
  strictness?: Strictness
  /** Longest wait for a thread, default 10 s. */
  waitMs?: number
}

/** Cost of the evaluations since the event loop was last free, in brief evaluations. */
let turnCost = 0

/** Evaluations that wait for the next turns of the event loop, by project; no list is empty. */
const waiting = new Map<string, (() => void)[]>()
let isServing = false

/**
 * Starts the evaluations of later turns of the event loop, of each project in turn: many evaluations in one turn together
 * take no longer than one, and evaluations of one project do not delay others.
 */
async function serveWaiting(): Promise<void> {
  isServing = true
  do {
    await new Promise(setImmediate)
    turnCost = 0
    while (turnCost < 1 && waiting.size > 0) {
      const [[project, starts]] = waiting
      waiting.delete(project)
      if (starts.length > 1) waiting.set(project, starts)
      starts.shift()?.()
      // The evaluation runs first.
      await Promise.resolve()
    }
  } while (waiting.size > 0 || turnCost > 0)
  isServing = false
}

/** Evaluates on the event loop within its limits; null if that does not suffice. */
async function evaluateOnLoop(project: string, request: EvaluationRequest): Promise<EvaluationOutcome | null> {
  if (!isServing) void serveWaiting()
  if (turnCost >= 1 || waiting.size > 0)
    await new Promise<void>(start => {
      const starts = waiting.get(project)
      if (starts) starts.push(start)
      else waiting.set(project, [start])
    })
  try {
    const outcome = evaluateWithin(briefLimits(request.spent), request)
    turnCost += briefShareOf(outcome.spent) - briefShareOf(request.spent)
    return outcome
  } catch (error) {
    if (!(error instanceof NotBriefError)) throw error
    turnCost += 1
    return null
  }
}

/** Evaluates in a thread. @throws SERVICE_NOT_READY */
async function evaluateInThread(
  services: Services,
  project: string,
  { expressions, root, ...rest }: EvaluationRequest,
  waitMs: number,
): Promise<EvaluationOutcome> {
  const text = JSON.stringify({ expressions, root: readPartOf(root, expressions) })
  const job = { task, project, input: { text, ...rest }, length: text.length }
  const outcome = await threads(services).run(job, { waitMs })
  if ('broke' in outcome) {
    const limit = outcome.broke === 'time' ? 'takes too long' : 'takes too much memory'
    return { values: [], spent: exhaustedBudget(), failed: `${limit} to evaluate` }
  }
  const { text: values, ...output } = outcome.output
  return { ...output, values: parseExactJson(values) }
}

/** Evaluates expressions on the event loop if that is brief, otherwise in a thread; adds the cost to `spent`. */
async function evaluateAll(
  services: Services,
  project: string,
  request: EvaluationRequest,
  waitMs = WAIT_MS,
): Promise<EvaluationOutcome> {
  const { spent } = request
  // Evaluations that share a budget may overlap.
  const before = { ...spent }
  const alone = { ...request, spent: before }
  const outcome = (await evaluateOnLoop(project, alone)) ?? (await evaluateInThread(services, project, alone, waitMs))
  spent.applications += outcome.spent.applications - before.applications
  spent.volume += outcome.spent.volume - before.volume
  return outcome
}

/**
 * Evaluates an expression, or a literal that contains expressions. The result is JSON that shares nothing with the
 * root.
 * @param project whose share of the threads it uses
 * @throws ExpressionError if the evaluation or its result exceeds a limit; SERVICE_NOT_READY if no thread is free
 */
export async function evaluate(
  services: Services,
  project: string,
  expression: unknown,
  root: unknown,
  { spent = freshBudget(), strictness = 'coercing', waitMs }: Options = {},
): Promise<unknown> {
  const request = { expressions: [expression], root, spent, strictness, bytes: null }
  return requireValues(await evaluateAll(services, project, request, waitMs))[0]
}

/** Size limit of a mapping, and its errors. */
type MappingLimits = {
  /** Most bytes of JSON of all values together. */
  bytes: number
  tooLarge(): Error
  /** Creates the error thrown in place of an ExpressionError. */
  failed?(key: string, error: ExpressionError): Error
}

/**
 * Evaluates the expressions of a mapping. They share one budget, and evaluation stops as soon as the values are too
 * large.
 * @throws ExpressionError, or the errors of `failed` and `tooLarge`; SERVICE_NOT_READY if no thread is free
 */
export async function evaluateMapping(
  services: Services,
  project: string,
  mapping: Record<string, unknown> | null | undefined,
  root: unknown,
  { bytes, tooLarge, failed: failure }: MappingLimits,
): Promise<Record<string, unknown>> {
  const keys = Object.keys(mapping ?? {})
  if (keys.length === 0) return {}
  const expressions = Object.values(mapping ?? {})
  const request = { expressions, root, spent: freshBudget(), strictness: 'coercing' as const, bytes }
  const { values, failed, tooLarge: isTooLarge } = await evaluateAll(services, project, request)
  if (isTooLarge) throw tooLarge()
  if (failed === undefined) return Object.fromEntries(keys.map((key, index) => [key, values[index]]))
  const error = new ExpressionError(failed)
  throw failure ? failure(keys[values.length], error) : error
}
