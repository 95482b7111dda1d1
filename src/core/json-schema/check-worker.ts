import { parentPort } from 'node:worker_threads'
import { CpuStarved } from './cpu-limit.ts'
import { SchemaError, type SchemaProblem, type SchemaRules } from './model.ts'
import { CompiledSchemas } from './validate.ts'

/**
 * Program of a worker thread that compiles and runs schemas, one job at a time (check-worker-pool.ts). It has no
 * secrets and may be terminated at any time.
 */

/** A schema as JSON with its cache key, and the values to check as JSON. Without values only the schema is checked. */
export type SchemaJob = {
  project: string
  key: string
  text: string
  rules: SchemaRules
  values: readonly string[]
}

/** `ms`: processor time of the job. */
export type SchemaAnswer = { ms: number } & (
  | { refused: string }
  | { starved: true }
  /** Results of at least one of the first values; the remaining ones require another job. */
  | { problems: SchemaProblem[][] }
)

/** Processor time after which the remaining values are left to another job. */
const SLICE_MS = 50

const schemas = new CompiledSchemas()

const cpuMsSince = (start: NodeJS.CpuUsage): number => {
  const { user, system } = process.threadCpuUsage(start)
  return (user + system) / 1000
}

function runJob({ project, text, rules, values }: SchemaJob): SchemaAnswer {
  const start = process.threadCpuUsage()
  try {
    schemas.check(project, text, rules)
    const problems: SchemaProblem[][] = []
    for (const value of values) {
      problems.push(schemas.problems(project, text, JSON.parse(value), rules))
      if (cpuMsSince(start) > SLICE_MS) break
    }
    return { problems, ms: cpuMsSince(start) }
  } catch (error) {
    if (error instanceof SchemaError) return { refused: error.message, ms: cpuMsSince(start) }
    if (error instanceof CpuStarved) return { starved: true, ms: cpuMsSince(start) }
    throw error
  }
}

parentPort?.on('message', (job: SchemaJob) => parentPort?.postMessage(runJob(job)))
