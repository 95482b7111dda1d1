import { z } from 'zod'
import { parseJson } from '../base/json-limits.ts'

/** Returns a schema that also accepts its value as JSON text; other text is passed to the schema unchanged. */
export const jsonOrJsonText = <T extends z.ZodType>(schema: T) =>
  z.preprocess(value => {
    if (typeof value !== 'string') return value
    try {
      return parseJson(value)
    } catch {
      return value
    }
  }, schema)
