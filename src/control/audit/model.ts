import { z } from 'zod'
import type { AuditEntry as Entry } from '../../core/api/audit.ts'
import { kind } from '../../core/api/kind.ts'
import { parseTime, textFilter } from '../../core/api/lists.ts'

/** A line of the audit log as the wire shows it (control, 5.1). */
export const AuditEntry = z
  .object({
    id: z.string(),
    project_id: z.string().nullable().describe('null for global actions; survives the deletion of the project'),
    principal_type: z.enum(['user', 'api_key']).nullable().describe('null when the platform acted'),
    principal_id: z.string().nullable(),
    action: z.string().describe('The permission that decided the request'),
    resource_srn: z.string().nullable(),
    resource_public_id: z.string().nullable(),
    status: z.int(),
    request_id: z.string().nullable(),
    ip: z.string().nullable(),
    user_agent: z.string().nullable(),
    detail: z.record(z.string(), z.unknown()).nullable(),
    created_at: z.string(),
  })
  .meta({ id: 'AuditEntry' })

/** The answer of a verification: how many entries the chain seals and the first that is not what was sealed. */
export const Verification = z
  .object({ valid: z.boolean(), checked: z.int(), first_broken_id: z.string().nullable() })
  .meta({ id: 'AuditVerification' })
export type Verification = z.output<typeof Verification>

const statuses = z
  .preprocess(
    value => (typeof value === 'string' ? [value] : value),
    z
      .array(
        z
          .string()
          .regex(/^[1-5]\d\d$/, 'must be an HTTP status')
          .transform(Number),
      )
      .min(1),
  )
  .optional() as unknown as z.ZodOptional<z.ZodArray<z.ZodInt>>

export const AuditFilters = z.object({
  action: textFilter,
  principal_id: textFilter,
  resource_public_id: textFilter,
  resource_srn: textFilter.describe('Prefix; % and _ are literal'),
  status: statuses,
})
export type AuditFilters = z.output<typeof AuditFilters>

const time = z
  .string()
  .refine(value => parseTime(value) !== null, 'must be one ISO 8601 time')
  .transform(value => parseTime(value) as Date)
  .optional()

export const ExportFilters = AuditFilters.extend({ from: time, to: time })

/** Entries are never changed; a lock on one is never taken. */
export const auditEntry = kind({
  name: 'audit_entry',
  plural: 'audit_entries',
  prefix: 'audit',
  table: 'audit_entries',
  counted: false,
  record: AuditEntry,
})

/** The entry with its keys in wire order. */
export const presentEntry = (row: Entry): Entry => auditEntry.present(row) as Entry
