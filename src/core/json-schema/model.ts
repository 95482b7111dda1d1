export type SchemaRules = {
  /**
   * Whether the formats date, date-time, email, uri and uuid are asserted, patterns must run in linear time, and
   * draft-07 must be declared. Otherwise formats are annotations, patterns may backtrack within the time limit, and a
   * schema that is invalid in 2020-12 is tried as draft-07.
   */
  strict: boolean
}

/**
 * A violation of a schema. `pointer` is the JSON pointer of the invalid part, empty for the value itself; `missing` is
 * a required property that this object lacks.
 */
export type SchemaProblem = { keyword: string; pointer: string; message: string; missing?: string }

/** A schema cannot be used; the message is the reason. */
export class SchemaError extends Error {}

export const MAX_SCHEMA_BYTES = 64 * 1024

/** Processor time limit for checking one value. */
export const CHECK_MS = 50

/** Returns the problem of a value whose check did not finish. */
export const noVerdictProblem = (keyword: string, message: string): SchemaProblem => ({ keyword, pointer: '', message })

export const timeoutProblem = (): SchemaProblem =>
  noVerdictProblem('timeout', `takes longer than ${CHECK_MS} ms to check`)
