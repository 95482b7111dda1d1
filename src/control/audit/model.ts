import { z } from 'zod'
import { columnFilter, equalsFilter, filterSchema } from '../../core/api/filters.ts'
import { kind } from '../../core/api/kind.ts'
import { parseTime, textFilter } from '../../core/api/lists.ts'
import { prefix, sql } from '../../core/db/sql.ts'

/** A line of the audit log as the wire shows it. */
export const AuditRecord = z
  .object({
    id: z.string().describe('Id of the entry'),
    project_id: z.string().nullable().describe('null for global actions; survives the deletion of the project'),
    principal_type: z.enum(['user', 'api_key']).nullable().describe('null when the platform acted'),
    principal_id: z.string().nullable().describe('User or key that acted'),
    action: z.string().describe('The permission that decided the request'),
    resource_srn: z.string().nullable().describe('Name of the resource as policies write it'),
    resource_public_id: z.string().nullable().describe('Id of the resource; of a create the new one'),
    status: z.int().describe('HTTP status of the answer'),
    request_id: z.string().nullable().describe('X-Request-Id of the answer'),
    ip: z.string().nullable().describe('Address of the client'),
    user_agent: z.string().nullable().describe('User-Agent header of the request'),
    detail: z
      .record(z.string(), z.unknown())
      .nullable()
      .describe('What else is known, such as the names of changed fields and further permissions that were asked'),
    created_at: z.string(),
  })
  .meta({ id: 'AuditEntry' })

export const Verification = z
  .object({
    valid: z.boolean().describe('Whether every entry checked is what was sealed'),
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

export const auditFilters = {
  action: equalsFilter('action'),
  principal_id: equalsFilter('principal_id'),
  resource_public_id: equalsFilter('resource_public_id'),
  resource_srn: columnFilter(
    textFilter.describe('Prefix of `resource_srn`; % and _ are literal'),
    text => sql.fragment`t.resource_srn like ${prefix(text)}`,
  ),
  status: columnFilter(
    statuses.describe('One `status` or several, by repeating it'),
    chosen => sql.fragment`t.status = any(${sql.array(chosen, 'int4')})`,
  ),
}

const time = z
  .string()
  .refine(value => parseTime(value) !== null, 'must be one ISO 8601 time')
  .transform(value => parseTime(value) as Date)
  .optional()

export const AuditExportQuery = filterSchema(auditFilters).extend({
  from: time.describe('Entries created at this time or later'),
  to: time.describe('Entries created at this time or earlier'),
})

/** Entries are never changed; a lock on one is never taken. */
export const auditEntryKind = kind({
  name: 'audit_entry',
  plural: 'audit_entries',
  prefix: 'audit',
  table: 'audit_entries',
  countKept: true,
  counted: false,
  record: AuditRecord,
})
