import { changesBetween, type FieldChange, toCloneable, toPlain } from '../api/compare.ts'
import { parseExactJson } from '../base/exact-json.ts'
import type { Services } from '../base/services.ts'
import { threadTask } from '../threads/pool.ts'
import { threads } from '../threads/threads.ts'
import type * as compareTask from './compare-task.ts'

const task = threadTask<typeof compareTask>('comparisons', new URL('./compare-task.ts', import.meta.url))

/** Most values of two versions that are compared on the event loop: up to 15 ms, at a depth of 60. */
const BRIEF_VALUES = 2000

/** Adds the values within a value, and its characters, which wait in memory for their turn. */
function measure(value: unknown, size: { values: number; chars: number }): void {
  size.values++
  if (typeof value !== 'object' || value === null) {
    size.chars += typeof value === 'string' ? value.length : 8
    return
  }
  size.chars += 16
  for (const [key, item] of value instanceof Map ? value.entries() : Object.entries(value)) {
    size.chars += String(key).length
    measure(item, size)
  }
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
  const size = { values: 0, chars: 0 }
  measure([before, after], size)
  if (size.values <= BRIEF_VALUES) return changesBetween(before, after)
  const input = { before: toCloneable(before), after: toCloneable(after) }
  const outcome = await threads(services).run({ task, project, input, length: size.chars })
  if ('output' in outcome) return parseExactJson(outcome.output)
  return [{ path: '', op: 'changed', before: toPlain(before), after: toPlain(after) }]
}
