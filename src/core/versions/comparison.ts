import { changesBetween, type FieldChange, toPlain } from '../api/compare.ts'
import type { Services } from '../process/services.ts'
import { threadTask } from '../threads/pool.ts'
import { threads } from '../threads/threads.ts'
import type * as compareTask from './compare-task.ts'

const task = threadTask<typeof compareTask>('comparisons', new URL('./compare-task.ts', import.meta.url))

/** Most values of two versions that are compared on the event loop: up to 15 ms, at a depth of 60. */
const BRIEF_VALUES = 2000

/** Counts the values within a value; stops above BRIEF_VALUES. */
function countValues(value: unknown, count = 0): number {
  let total = count + 1
  if (typeof value !== 'object' || value === null) return total
  for (const item of value instanceof Map ? value.values() : Object.values(value)) {
    if (total > BRIEF_VALUES) break
    total = countValues(item, total)
  }
  return total
}

/** Returns the characters of a value, which waits in memory for its turn. */
function charsOf(value: unknown): number {
  if (typeof value === 'string') return value.length
  if (typeof value !== 'object' || value === null) return 8
  const entries = value instanceof Map ? value.entries() : Object.entries(value)
  let chars = 16
  for (const [key, item] of entries) chars += String(key).length + charsOf(item)
  return chars
}

/**
 * Returns the differences between two versions: on the event loop if that is brief, otherwise in a thread. A
 * comparison that runs out of time or memory reports a single change of everything.
 * @param project whose share of the threads it uses
 * @throws SERVICE_NOT_READY if no thread is free
 */
export async function compareVersions(
  services: Services,
  project: string,
  before: unknown,
  after: unknown,
): Promise<FieldChange[]> {
  if (countValues([before, after]) <= BRIEF_VALUES) return changesBetween(before, after)
  const length = charsOf(before) + charsOf(after)
  const outcome = await threads(services).run({ task, project, input: { before, after }, length })
  if ('output' in outcome) return JSON.parse(outcome.output)
  return [{ path: '', op: 'changed', before: toPlain(before), after: toPlain(after) }]
}
