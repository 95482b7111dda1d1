import { cpuMsSince } from '../threads/cpu-limit.ts'
import { SchemaError, type SchemaProblem, type SchemaRules } from './model.ts'
import { CompiledSchemas } from './validate.ts'

/** Task of threads (core/threads) that compiles and runs schemas. */

/** A schema as JSON, and the values to check as JSON. Without values only the schema is checked. */
type SchemaInput = { project: string; text: string; rules: SchemaRules; values: readonly string[] }

type SchemaOutput =
  | { refused: string }
  /** Results of at least one of the first values; the remaining ones require another run. */
  | { problems: SchemaProblem[][] }

/** Processor time after which the remaining values are left to another run. */
const SLICE_MS = 50

const schemas = new CompiledSchemas()

export function run({ project, text, rules, values }: SchemaInput): SchemaOutput {
  const start = process.threadCpuUsage()
  try {
    schemas.check(project, text, rules)
    const problems: SchemaProblem[][] = []
    for (const value of values) {
      problems.push(schemas.problems(project, text, JSON.parse(value), rules))
      if (cpuMsSince(start) > SLICE_MS) break
    }
    return { problems }
  } catch (error) {
    if (error instanceof SchemaError) return { refused: error.message }
    throw error
  }
}
