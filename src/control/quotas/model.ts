import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { patchBody, projectField, record } from '../../core/api/record.ts'
import { sql } from '../../core/db/sql.ts'
import { WINDOWS } from './windows.ts'

export const QUOTA_SCOPES = ['project', 'api_key', 'agent', 'actor'] as const
export const METRICS = ['requests', 'tokens', 'cost_usd', 'storage_bytes'] as const
export const MODES = ['enforce', 'monitor'] as const
const METER_TYPES = ['llm_tokens', 'compute_execution', 'api_request', 'storage'] as const

export type QuotaScope = (typeof QUOTA_SCOPES)[number]
export type Metric = (typeof METRICS)[number]

/** Scopes that a metric can be capped for. */
const scopesOf: Record<Metric, readonly QuotaScope[]> = {
  requests: ['project', 'api_key'],
  tokens: ['project', 'agent', 'actor'],
  cost_usd: ['project', 'agent', 'actor'],
  storage_bytes: ['project'],
}

const MeasuredUsage = z.object({
  window_key: z.string().describe('Name of the window, its start in UTC'),
  count: z.int().describe('Requests counted so far'),
  resets_at: z.string().describe('When the next window begins'),
})
export type MeasuredUsage = z.output<typeof MeasuredUsage>

const scope = z.enum(QUOTA_SCOPES).describe('What is capped: a project, key, agent or actor')
const scopeRef = z
  .string()
  .nullable()
  .describe('Id of the key, agent or actor; null means all of the scope, for actors one budget each')
const metric = z.enum(METRICS).describe('What is counted')
const window = z.enum(WINDOWS).describe('Time over which usage adds up, in UTC; `current` for storage_bytes')
const limit = z.number().describe('Most that a window may use; a whole number save for cost_usd')
const mode = z.enum(MODES).describe('`enforce` refuses what exceeds the limit, `monitor` reports it')
const meterType = z.enum(METER_TYPES).nullable().describe('The one meter whose cost counts, for cost_usd; null for all')
const onUnpriced = z
  .enum(['block', 'allow'])
  .nullable()
  .describe('What happens to usage without a price, for cost_usd; default `block`')
const warnAt = z.array(z.number()).describe('Fractions of the limit at which quotas.warned is emitted, once per window')
const reserve = z
  .boolean()
  .describe(
    'Also count what turns under way and the one that starts are expected to use: the mean of the last 20; for tokens and cost_usd',
  )

export const Quota = record('Quota', {
  scope,
  scope_ref: scopeRef,
  metric,
  window,
  limit,
  mode,
  meter_type: meterType,
  on_unpriced: onUnpriced,
  warn_at: warnAt,
  reserve,
  current_usage: MeasuredUsage.nullable().describe(
    'The running window of a requests quota; null in lists and otherwise',
  ),
})

/** The running window, measured now. */
export const QuotaUsage = z
  .object({
    window_key: z.string().describe('Name of the window, its start in UTC'),
    observed_value: z
      .number()
      .nullable()
      .describe(
        'Of a quota with a budget for each actor, what the fullest one has used; null when storage was not measured yet',
      ),
    limit,
    remaining: z.number().nullable().describe('What is left of the limit; null with observed_value'),
    resets_at: z.string().nullable().describe('When the next window begins; null for storage_bytes'),
    actors: z
      .array(
        z.object({
          actor_id: z.string().describe('ID of the actor, which may have been deleted'),
          observed_value: z.number().describe('What the actor has used'),
          remaining: z.number().describe('What is left of the limit for the actor'),
        }),
      )
      .nullable()
      .describe(
        'Of a quota with a budget for each actor, the ten actors that used most, fullest first; null for others',
      ),
  })
  .meta({ id: 'QuotaUsage' })

const limitInput = z
  .number()
  .positive('must be greater than 0')
  .describe(limit.description as string)
const warnAtInput = z
  .array(z.number().gt(0).max(1))
  .max(10)
  .refine(fractions => new Set(fractions).size === fractions.length, 'must not name a fraction twice')
  .describe(warnAt.description as string)

/** What is wrong with a limit for a metric; null when nothing is. */
export const limitProblem = (metric: Metric, value: number): string | null =>
  metric === 'cost_usd' || Number.isSafeInteger(value) ? null : `must be a whole number for ${metric}`

/** Whether turns use what a quota counts, so that what they will use can be reserved. */
export const isReservable = ({ metric, meter_type }: { metric: Metric; meter_type?: string | null }): boolean =>
  isSpend(metric) && (meter_type == null || meter_type === 'llm_tokens')

export const RESERVABLE = 'belongs to tokens and to cost_usd of llm_tokens or of every meter'

export const isSpend = (metric: Metric): boolean => metric === 'tokens' || metric === 'cost_usd'

export const QuotaInput = z
  .strictObject({
    project_id: projectField,
    scope,
    scope_ref: z
      .string()
      .min(1)
      .max(64)
      .nullable()
      .optional()
      .describe(scopeRef.description as string),
    metric,
    window,
    limit: limitInput,
    mode: mode.default('enforce'),
    meter_type: meterType.optional(),
    on_unpriced: onUnpriced.optional(),
    warn_at: warnAtInput.default([]),
    reserve: reserve.default(false),
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
    if (quota.reserve && !isReservable(quota)) refuse('reserve', RESERVABLE)
  })
  .meta({
    id: 'QuotaInput',
    example: { scope: 'project', metric: 'tokens', window: 'calendar_month', limit: 5000000, mode: 'enforce' },
  })

/** scope, scope_ref, metric, window and meter_type are fixed for life. */
export const QuotaPatch = patchBody(
  'QuotaPatch',
  {
    limit: limitInput,
    mode,
    on_unpriced: onUnpriced,
    warn_at: warnAtInput,
    reserve,
  },
  { limit: 8000000 },
)

export const quotaKind = kind({
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
  unique: { quotas_identity: () => raise('QUOTA_CONFLICT') },
  events: ['created', 'updated', 'deleted', 'warned', 'exceeded'],
  eventNames: { exceeded: 'quota.exceeded' },
  eventAliases: { exceeded: ['quotas.exceeded'] },
  eventNotes: 'warned adds window_key, observed_value, fraction; quota.exceeded has fixed fields instead of the record',
})
export type QuotaRow = z.output<typeof quotaKind.row>
