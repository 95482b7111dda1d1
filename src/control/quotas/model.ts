import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { record } from '../../core/api/record.ts'
import { sql } from '../../core/db/sql.ts'
import { WINDOWS } from './windows.ts'

export const SCOPES = ['project', 'api_key', 'agent', 'actor'] as const
export const METRICS = ['requests', 'tokens', 'cost_usd', 'storage_bytes'] as const
export const MODES = ['enforce', 'monitor'] as const
const METER_TYPES = ['llm_tokens', 'compute_execution', 'api_request', 'storage'] as const

export type Scope = (typeof SCOPES)[number]
export type Metric = (typeof METRICS)[number]

/** Scopes a metric can be capped for (reference.md, scope and metric validity). */
const scopesOf: Record<Metric, readonly Scope[]> = {
  requests: ['project', 'api_key'],
  tokens: ['project', 'agent', 'actor'],
  cost_usd: ['project', 'agent', 'actor'],
  storage_bytes: ['project'],
}

const Usage = z.object({ window_key: z.string(), count: z.int(), resets_at: z.string() })
export type Usage = z.output<typeof Usage>

/** A quota as the wire shows it (reference.md, Quota; control, 3.1). */
export const Quota = record('Quota', {
  scope: z.enum(SCOPES),
  scope_ref: z
    .string()
    .nullable()
    .describe('Id of the key, agent or actor; null means all of the scope, for actors one budget each'),
  metric: z.enum(METRICS),
  window: z.enum(WINDOWS),
  limit: z.number(),
  mode: z.enum(MODES),
  meter_type: z.enum(METER_TYPES).nullable(),
  on_unpriced: z.enum(['block', 'allow']).nullable(),
  warn_at: z.array(z.number()).describe('Fractions of the limit at which quotas.warned is emitted, once per window'),
  current_usage: Usage.nullable().describe('The running window of a requests quota; null in lists and otherwise'),
})
export type Quota = z.output<typeof Quota>

/** The running window, measured now (control, 3.6). */
export const QuotaUsage = z
  .object({
    window_key: z.string(),
    observed_value: z
      .number()
      .nullable()
      .describe('null when usage of the metric is not metered, or storage was not yet'),
    limit: z.number(),
    remaining: z.number().nullable(),
    resets_at: z.string().nullable(),
  })
  .meta({ id: 'QuotaUsage' })

const limit = z.number().positive('must be greater than 0')
const warnAt = z
  .array(z.number().gt(0).max(1))
  .max(10)
  .refine(fractions => new Set(fractions).size === fractions.length, 'must not name a fraction twice')

/** What is wrong with a limit for a metric; null when nothing is. */
export const limitProblem = (metric: Metric, value: number): string | null =>
  metric === 'cost_usd' || Number.isSafeInteger(value) ? null : `must be a whole number for ${metric}`

export const QuotaInput = z
  .strictObject({
    project_id: z.string().nullable().optional(),
    scope: z.enum(SCOPES),
    scope_ref: z.string().min(1).max(64).nullable().optional(),
    metric: z.enum(METRICS),
    window: z.enum(WINDOWS),
    limit,
    mode: z.enum(MODES).default('enforce'),
    meter_type: z.enum(METER_TYPES).nullable().optional(),
    on_unpriced: z.enum(['block', 'allow']).nullable().optional(),
    warn_at: warnAt.default([]),
  })
  .superRefine((quota, context) => {
    const refuse = (path: keyof typeof quota, message: string) =>
      context.addIssue({ code: 'custom', path: [path], message })
    const { metric, scope, window } = quota
    if (!scopesOf[metric].includes(scope)) refuse('scope', `must be ${scopesOf[metric].join(' or ')} for ${metric}`)
    if ((window === 'current') !== (metric === 'storage_bytes'))
      refuse('window', metric === 'storage_bytes' ? 'must be current for storage_bytes' : 'must be a span of time')
    if (metric !== 'cost_usd' && quota.meter_type) refuse('meter_type', 'belongs to cost_usd only')
    if (metric !== 'cost_usd' && quota.on_unpriced) refuse('on_unpriced', 'belongs to cost_usd only')
    if (scope === 'project' && quota.scope_ref) refuse('scope_ref', 'must be null for scope project')
    const problem = limitProblem(metric, quota.limit)
    if (problem) refuse('limit', problem)
  })
  .meta({ id: 'QuotaInput' })
export type QuotaInput = z.output<typeof QuotaInput>

/** scope, scope_ref, metric, window and meter_type are fixed for life. */
export const QuotaPatch = z
  .strictObject({
    limit,
    mode: z.enum(MODES),
    on_unpriced: z.enum(['block', 'allow']).nullable(),
    warn_at: warnAt,
  })
  .partial()
  .refine(patch => Object.keys(patch).length > 0, 'must name at least one field')
  .meta({ id: 'QuotaPatch' })
export type QuotaPatch = z.output<typeof QuotaPatch>

export const quota = kind({
  name: 'quota',
  prefix: 'quota',
  table: 'quotas',
  record: Quota,
  /** Its marks: the windows for which something was reported already. */
  hidden: {
    fired_window_key: z.string().nullable(),
    last_fired_at: z.string().nullable(),
    audited_window_key: z.string().nullable(),
    warned_window_key: z.string().nullable(),
    warned_fraction: z.number().nullable(),
  },
  computed: { current_usage: sql.fragment`null::jsonb` },
  events: ['created', 'updated', 'deleted', 'warned', 'exceeded'],
  eventNames: { exceeded: 'quota.exceeded' },
  eventAliases: { exceeded: ['quotas.exceeded'] },
  eventNotes: 'warned adds window_key, observed_value, fraction; quota.exceeded has fixed fields instead of the record',
})
export type QuotaRow = z.output<typeof quota.row>

/** The record with what it has counted, where that is asked for. */
export const presentQuota = (row: QuotaRow, usage: Usage | null = null): Quota =>
  quota.present({ ...row, current_usage: usage }) as Quota
