import { parentPort } from 'node:worker_threads'
import { CpuStarved } from './cpu-limit.ts'
import { SchemaError, type SchemaProblem, type SchemaRules } from './model.ts'
import { CompiledSchemas } from './validate.ts'

/**
 * The program of a thread that compiles and runs schemas: one job after the other, from threads.ts. It holds no secret,
 * and may be terminated at any time.
 */

/** A schema as JSON, by a key of its own, and values as JSON to check; without any, the schema alone is checked. */
export type SchemaJob = {
  project: string
  key: string
  text: string
  rules: SchemaRules
  values: readonly string[]
}

/** `ms`: processor time it took; `checkMs`: of that, the most that one value took. */
export type SchemaAnswer = { ms: number; checkMs: number } & (
  | { refused: string }
  | { starved: true }
  /** Of the first values, at least one of them: the others have to wait for their turn. */
  | { problems: SchemaProblem[][] }
)

/** Processor time after which the values that are left wait for another turn. */
const SLICE_MS = 50

const schemas = new CompiledSchemas()

const since = (start: NodeJS.CpuUsage): number => {
  const { user, system } = process.threadCpuUsage(start)
  return (user + system) / 1000
}

function carryOut({ project, text, rules, values }: SchemaJob): SchemaAnswer {
  const start = process.threadCpuUsage()
  let checkMs = 0
  try {
    schemas.check(project, text, rules)
    const problems: SchemaProblem[][] = []
    for (const value of values) {
      const before = process.threadCpuUsage()
      problems.push(schemas.problems(project, text, JSON.parse(value), rules))
      checkMs = Math.max(checkMs, since(before))
      if (since(start) > SLICE_MS) break
    }
    return { problems, ms: since(start), checkMs }
  } catch (error) {
    if (error instanceof SchemaError) return { refused: error.message, ms: since(start), checkMs }
    if (error instanceof CpuStarved) return { starved: true, ms: since(start), checkMs }
    throw error
  }
}

parentPort?.on('message', (job: SchemaJob) => parentPort?.postMessage(carryOut(job)))
