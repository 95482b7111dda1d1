import { z } from 'zod'
import type { Problem } from './errors.ts'

const Warning = z
  .object({ code: z.string(), path: z.string().describe('Where it stands in the record'), message: z.string() })
  .meta({ id: 'Warning' })

/** What a write answers: the record, with what may be a mistake in it. A warning refuses nothing. */
export const withWarnings = (record: z.ZodObject, id: string) =>
  record
    .extend({
      warnings: z.array(Warning).optional().describe('What may be a mistake; left out where there is nothing'),
    })
    .meta({ id })

export const shownWarnings = (warnings: readonly Problem[]): object => (warnings.length > 0 ? { warnings } : {})
