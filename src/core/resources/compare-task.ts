import { changesBetween, type FieldChange } from '../api/compare.ts'
import { runWithCpuLimit } from '../threads/cpu-limit.ts'

/** Task of threads (core/threads) that compares versions. */

const MAX_MS = 2000

/** Returns the changes as JSON, which is parsed faster than a structured clone. */
export const run = ({ before, after }: { before: unknown; after: unknown }): string =>
  runWithCpuLimit(MAX_MS, () => JSON.stringify(changesBetween(before, after) satisfies FieldChange[]))
