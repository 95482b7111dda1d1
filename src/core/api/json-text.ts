import { z } from 'zod'
import { parseJson } from '../http/body.ts'

/** A field that is also taken as JSON text; what is no JSON is left to the schema behind it. */
export const jsonOrJsonText = <T extends z.ZodType>(schema: T) =>
  z.preprocess(value => {
    if (typeof value !== 'string') return value
    try {
      return parseJson(value)
    } catch {
      return value
    }
  }, schema)
