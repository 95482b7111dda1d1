import { z } from 'zod'
import { columnFilter, equalsFilter, filterSchema } from '#core/api/filters.ts'
import { kind } from '#core/api/kind.ts'
import { integerQuery, parseTime, textFilter } from '#core/api/lists.ts'
import { prefix, sql } from '#core/db/sql.ts'
import { AUDIT_PREFIX } from '#core/writes/audit-entry.ts'

/** An audit entry in responses. */
export const AuditRecord = z
  .object({
    id: z.string().describe('ID of the entry'),
    project_id: z
      .string()
      .nullable()
      .describe('ID of the project, also after its deletion. Null for actions outside projects.'),
    principal_type: z
      .enum(['user', 'api_key'])
      .nullable()
      .describe('Type of the principal. Null for actions of the platform.'),
    principal_id: z.string().nullable().describe('ID of the user or API key'),
    action: z.string().describe('Permission that decided the request'),
    resource_srn: z.string().nullable().describe('Resource name as used in policies'),
    resource_public_id: z.string().nullable().describe('ID of the resource; after a create, of the new resource'),
    status: z.int().describe('HTTP status of the response'),
    request_id: z.string().nullable().describe('X-Request-Id of the response'),
    ip: z.string().nullable().describe('IP address of the client'),
    user_agent: z.string().nullable().describe('User-Agent header of the request'),
    detail: z
      .record(z.string(), z.unknown())
      .nullable()
      .describe('Additional data, such as names of changed fields and further permissions that were evaluated'),
    created_at: z.string(),
  })
  .meta({ id: 'AuditEntry' })

export const Verification = z
  .object({
    valid: z.boolean().describe('Whether every checked entry matches its seal'),
    checked: z.int().describe('Position of the last checked entry in the chain; the first entry has position 1'),
    first_broken_id: z
      .string()
      .nullable()
      .describe(
        'ID of the first entry that was changed or deleted after sealing. Null if the chain is valid or its end is missing.',
      ),
  })
  .meta({ id: 'AuditVerification' })
export type Verification = z.output<typeof Verification>

export const VerificationQuery = z.object({
  after: integerQuery(0)
    .default(0)
    .describe(
      'Position after which to start, for example `checked` of the previous verification. Entries up to it are not checked. Default 0.',
    ),
  max_entries: integerQuery(1)
    .default(Number.MAX_SAFE_INTEGER)
    .describe('Maximum number of entries to check. Default all.'),
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
    statuses.describe('Value of `status`; repeat the parameter to match any of several'),
    values => sql.fragment`t.status = any(${sql.array(values, 'int4')})`,
  ),
}

const time = z
  .string()
  .refine(value => parseTime(value) !== null, 'must be an ISO 8601 time')
  .transform(value => parseTime(value) as Date)
  .optional()

export const AuditExportQuery = filterSchema(auditFilters).extend({
  from: time.describe('Entries created at this time or later'),
  to: time.describe('Entries created at this time or earlier'),
})

/** Entries never change, so they are never locked. */
export const auditEntryKind = kind({
  name: 'audit_entry',
  plural: 'audit_entries',
  prefix: AUDIT_PREFIX,
  table: 'audit_entries',
  countKept: true,
  counted: false,
  record: AuditRecord,
})
