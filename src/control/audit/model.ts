import { z } from 'zod'
import type { AuditEntry as Entry } from '../../core/api/audit.ts'
import { kind } from '../../core/api/kind.ts'
import { parseTime, textFilter } from '../../core/api/lists.ts'

/** A line of the audit log as the wire shows it. */
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

export const Verification = z
  .object({
    valid: z.boolean(),
    checked: z.int().describe('Position in the chain of the last entry checked; the first entry has position 1'),
    first_broken_id: z
      .string()
      .nullable()
      .describe(
        'The first entry that was changed or deleted after it was sealed; null when the chain is valid or its end is missing',
      ),
  })
  .meta({ id: 'AuditVerification' })
export type Verification = z.output<typeof Verification>

const whole = (min: number) =>
  z
    .string()
    .regex(/^\d{1,15}$/, 'must be an integer')
    .transform(Number)
    .refine(value => value >= min, `must be at least ${min}`)

export const VerificationQuery = z.object({
  after: whole(0)
    .default(0)
    .describe(
      'Position after which to start, such as `checked` of the last verification; entries up to it are taken as verified',
    ),
  max_entries: whole(1).default(Number.MAX_SAFE_INTEGER).describe('Maximum number of entries to check; by default all'),
})

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
