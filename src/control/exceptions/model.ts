import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { projectField, record } from '#core/api/record.ts'
import { SEVERITIES, type Severity } from '../activity/model.ts'

export const EXCEPTION_STATUSES = ['open', 'acknowledged', 'resolved'] as const

/** Kinds of exceptions with their default severity. */
export const EXCEPTION_KINDS = {
  run_failed: 'critical',
  worker_lost: 'critical',
  guardrail_tripwire: 'warning',
  approval_expired: 'warning',
  quota_unpriced: 'warning',
  event_trigger_loop: 'warning',
  chain_limit: 'warning',
  manual: 'warning',
  secret_expiring: 'warning',
  memory_rule_failed: 'warning',
  webhook_failing: 'warning',
  telemetry_dropped: 'warning',
  formation_drift: 'warning',
  human_requested: 'warning',
  retention_backlog: 'warning',
  embedding_partial: 'warning',
} as const satisfies Record<string, Severity>
export type ExceptionKind = keyof typeof EXCEPTION_KINDS

export const EXCEPTION_KIND_NAMES = Object.keys(EXCEPTION_KINDS) as [ExceptionKind, ...ExceptionKind[]]

const DETAIL_BYTES = 16_384

const reference = z.string().nullable()
const severity = z.enum(SEVERITIES).describe('Severity of the exception')
const note = z.string().trim().min(1).max(2000).describe('Note on the resolution')

export const Exception = record('Exception', {
  status: z.enum(EXCEPTION_STATUSES).describe('`open`, `acknowledged` (a user is working on it) or `resolved`'),
  severity,
  kind: z.enum(EXCEPTION_KIND_NAMES).describe('Type of the exception'),
  title: z.string().describe('One-line text for display'),
  detail: z
    .record(z.string(), z.unknown())
    .nullable()
    .describe('Data of the latest occurrence; its fields depend on `kind`'),
  occurrence_count: z.int().describe('Number of occurrences'),
  last_seen_at: z.iso.datetime().describe('Time of the latest occurrence'),
  orchestration_run_id: reference.describe('ID of the orchestration run'),
  node_id: reference.describe('ID of the node in the run'),
  agent_id: reference.describe('ID of the agent'),
  guardrail_version: reference.describe('Guardrail that triggered, as `<id>@<version>`'),
  acknowledged_by: reference.describe('ID of the user who first acknowledged it'),
  resolved_by: reference.describe(
    'ID of the user who resolved it. Null while unresolved or if the platform resolved it.',
  ),
  resolution_note: reference.describe('Note of that user'),
})

const uncheckedId = z.string().min(1).max(64).nullable()

export const ExceptionInput = z
  .strictObject({
    project_id: projectField,
    title: z.string().trim().min(1).max(500).describe('One-line description of the problem'),
    severity: severity.optional(),
    detail: z
      .record(z.string(), z.unknown())
      .nullable()
      .optional()
      .refine(
        detail => Buffer.byteLength(JSON.stringify(detail ?? null)) <= DETAIL_BYTES,
        'must be at most 16 KiB of JSON',
      )
      .describe('Additional data, at most 16 KiB'),
    agent_id: uncheckedId.optional().describe('ID of the agent; not checked for existence'),
    orchestration_run_id: uncheckedId.optional().describe('ID of the orchestration run; not checked for existence'),
    dedup_key: z
      .string()
      .min(1)
      .max(200)
      .nullable()
      .optional()
      .describe(
        'Deduplication key: while an exception with this key is unresolved, filing another one increments its occurrence count',
      ),
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
      .describe('IDs of the exceptions to resolve, at most 100'),
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
        exception: Exception.nullable().describe('Resolved exception. Null on error.'),
        error: z
          .object({ code: z.string(), message: z.string() })
          .nullable()
          .describe('Reason for the failure. Null on success.'),
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
