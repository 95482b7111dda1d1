import { changesBetween, type FieldChange } from '../api/compare.ts'
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
  const length = countValues([before, after])
  if (length <= BRIEF_VALUES) return changesBetween(before, after)
  const outcome = await threads(services).run({ task, project, input: { before, after }, length })
  if ('output' in outcome) return JSON.parse(outcome.output)
  return [{ path: '', op: 'changed', before, after }]
}
