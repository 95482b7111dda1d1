export type SchemaRules = {
  /**
   * Formats date, date-time, email, uri and uuid are asserted, patterns must run in linear time, and draft-07 has to be
   * named. Otherwise formats are annotations, a pattern may backtrack within the time limit, and a schema that is not
   * valid as 2020-12 is tried as draft-07.
   */
  strict: boolean
}

/**
 * Where a value breaks a schema; `pointer` is a JSON pointer, empty for the value itself. `missing` is the property that an
 * object lacks at the place.
 */
export type SchemaProblem = { keyword: string; pointer: string; message: string; missing?: string }

/** A schema that cannot be used; the message says why. */
export class SchemaError extends Error {}

export const MAX_SCHEMA_BYTES = 64 * 1024

/** Processor time to check one value. */
export const CHECK_MS = 50

/** The problem of a value for which there is no verdict. */
export const noVerdictProblem = (keyword: string, message: string): SchemaProblem => ({ keyword, pointer: '', message })

export const timeoutProblem = (): SchemaProblem =>
  noVerdictProblem('timeout', `takes longer than ${CHECK_MS} ms to check`)
