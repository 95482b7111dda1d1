import { z } from 'zod'
import type { Problem } from '../base/errors.ts'

const Warning = z
  .object({ code: z.string(), path: z.string().describe('Path of the field in the record'), message: z.string() })
  .meta({ id: 'Warning' })

/** Returns the response schema of a write: the record with warnings about possible mistakes. */
export const withWarnings = (record: z.ZodObject, id: string) =>
  record
    .extend({
      warnings: z.array(Warning).optional().describe('Possible mistakes in the record. Omitted if there are none.'),
    })
    .meta({ id })

/** Returns the field with the warnings of a write; no field if there are none. */
export const warningsField = (warnings: readonly Problem[]): object => (warnings.length > 0 ? { warnings } : {})
