import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { projectField, record } from '../../core/api/record.ts'
import { SEVERITIES, type Severity } from '../activity/model.ts'

export const STATUSES = ['open', 'acknowledged', 'resolved'] as const

/** What is filed, with its severity unless the filing says another one. */
export const EXCEPTION_KINDS = {
  run_failed: 'critical',
  guardrail_tripwire: 'warning',
  approval_expired: 'warning',
  quota_unpriced: 'warning',
  event_trigger_loop: 'warning',
  chain_limit: 'warning',
  manual: 'warning',
  secret_expiring: 'warning',
  memory_rule_failed: 'warning',
  webhook_failing: 'warning',
  formation_drift: 'warning',
} as const satisfies Record<string, Severity>
export type ExceptionKind = keyof typeof EXCEPTION_KINDS

export const EXCEPTION_KIND_NAMES = Object.keys(EXCEPTION_KINDS) as [ExceptionKind, ...ExceptionKind[]]

const DETAIL_BYTES = 16_384

const reference = z.string().nullable()
const severity = z.enum(SEVERITIES).describe('How urgent it is')
const note = z.string().trim().min(1).max(2000).describe('What was found or done, for those who come later')

export const Exception = record('Exception', {
  status: z.enum(STATUSES).describe('`open`, `acknowledged` (somebody is on it), `resolved`'),
  severity,
  kind: z.enum(EXCEPTION_KIND_NAMES).describe('What happened'),
  title: z.string().describe('One line for people'),
  detail: z.record(z.string(), z.unknown()).nullable().describe('Facts of the latest occurrence, by kind'),
  occurrence_count: z.int().describe('How often it happened since it was filed'),
  last_seen_at: z.iso.datetime().describe('Time of the latest occurrence'),
  orchestration_run_id: reference.describe('Run in which it happened'),
  node_id: reference.describe('Node of the run'),
  agent_id: reference.describe('Agent that it is about'),
  guardrail_version: reference.describe('Guardrail that decided, as `<id>@<version>`'),
  acknowledged_by: reference.describe('User who acknowledged it first'),
  resolved_by: reference.describe('User who resolved it'),
  resolution_note: reference.describe('What that user noted'),
})

const plainId = z.string().min(1).max(64).nullable()

export const ExceptionInput = z
  .strictObject({
    project_id: projectField,
    title: z.string().trim().min(1).max(500).describe('One line that says what is wrong'),
    severity: severity.optional(),
    detail: z
      .record(z.string(), z.unknown())
      .nullable()
      .optional()
      .refine(
        detail => Buffer.byteLength(JSON.stringify(detail ?? null)) <= DETAIL_BYTES,
        'must be at most 16 KiB of JSON',
      )
      .describe('Facts that help to understand it'),
    agent_id: plainId.optional().describe('Agent that it is about; a plain id that is not looked up'),
    orchestration_run_id: plainId.optional().describe('Run that it is about; a plain id that is not looked up'),
    dedup_key: z
      .string()
      .min(1)
      .max(200)
      .nullable()
      .optional()
      .describe('Same key, same matter: while an item with it is not resolved, filing it again counts an occurrence'),
  })
  .meta({ id: 'ExceptionInput', example: { title: 'Refunds cannot be booked', severity: 'warning' } })

export const ResolveExceptionInput = z
  .strictObject({ note: note.nullable().optional() })
  .meta({ id: 'ResolveExceptionInput', example: { note: 'The ledger was down for an hour' } })

export const ResolveManyInput = z
  .strictObject({
    ids: z
      .array(z.string().min(1).max(64))
      .min(1)
      .max(100)
      .transform(ids => [...new Set(ids)])
      .describe('Items to resolve; at most 100'),
    note: note.nullable().optional(),
  })
  .meta({
    id: 'ResolveExceptionsInput',
    example: { ids: ['exc_01k5p3vd7r9hj2x8m4qcw6tz0e'], note: 'The ledger was down for an hour' },
  })

export const ResolveManyResult = z
  .object({
    results: z.array(
      z.object({
        id: z.string(),
        exception: Exception.nullable().describe('The item, when it was resolved'),
        error: z.object({ code: z.string(), message: z.string() }).nullable().describe('Why it was not'),
      }),
    ),
  })
  .meta({ id: 'ResolveExceptionsResult' })

export const exceptionKind = kind({
  name: 'exception',
  prefix: 'exc',
  table: 'exceptions',
  notFound: 'EXCEPTION_NOT_FOUND',
  missing: 'EXCEPTION_NOT_FOUND',
  counted: false,
  countKept: true,
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  record: Exception,
  events: ['created', 'acknowledged', 'resolved'],
  eventNotes: 'created once per item; further occurrences are no event',
})
export type ExceptionRow = z.output<typeof exceptionKind.row>
