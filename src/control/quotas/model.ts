import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { patchBody, projectField, record } from '#core/api/record.ts'
import { raise } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import { QUOTA_WINDOWS } from './windows.ts'

export const QUOTA_SCOPES = ['project', 'api_key', 'agent', 'actor'] as const
export const QUOTA_METRICS = ['requests', 'tokens', 'cost_usd', 'storage_bytes'] as const
export const QUOTA_MODES = ['enforce', 'monitor'] as const
const METER_TYPES = ['llm_tokens', 'compute_execution', 'api_request', 'storage'] as const

export type QuotaScope = (typeof QUOTA_SCOPES)[number]
export type QuotaMetric = (typeof QUOTA_METRICS)[number]

/** Scopes allowed for each metric. */
const scopesOf: Record<QuotaMetric, readonly QuotaScope[]> = {
  requests: ['project', 'api_key'],
  tokens: ['project', 'agent', 'actor'],
  cost_usd: ['project', 'agent', 'actor'],
  storage_bytes: ['project'],
}

const MeasuredUsage = z.object({
  window_key: z.string().describe('Key of the window, derived from its start in UTC'),
  count: z.int().describe('Number of requests in the window'),
  resets_at: z.string().describe('Start of the next window'),
})
export type MeasuredUsage = z.output<typeof MeasuredUsage>

const scope = z.enum(QUOTA_SCOPES).describe('Scope of the limit: project, API key, agent or actor')
const scopeRef = z
  .string()
  .nullable()
  .describe('ID of the API key, agent or actor. Null for all of the scope; each actor then has a separate budget.')
const metric = z.enum(QUOTA_METRICS).describe('Measured quantity')
const window = z.enum(QUOTA_WINDOWS).describe('Time window in UTC; `current` for storage_bytes')
const limit = z.number().describe('Maximum per window; an integer except for cost_usd')
const mode = z
  .enum(QUOTA_MODES)
  .describe('`enforce` – requests over the limit are refused; `monitor` – breaches are only reported')
const meterType = z.enum(METER_TYPES).nullable().describe('Meter type whose cost counts, for cost_usd. Null for all.')
const onUnpriced = z
  .enum(['block', 'allow'])
  .nullable()
  .describe('Handling of unpriced usage, for cost_usd. Default `block`.')
const warnAt = z
  .array(z.number())
  .describe('Fractions of the limit at which quotas.warned is emitted, each once per window')
const reserve = z
  .boolean()
  .describe(
    'Whether to count the expected usage of active turns and of the starting turn, each at the mean of the last 20 turns. For tokens and cost_usd only.',
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
    'Current window of a requests quota. Null for other metrics and in lists.',
  ),
})

/** Live measurement of the current window. */
export const QuotaUsage = z
  .object({
    window_key: z.string().describe('Key of the window, derived from its start in UTC'),
    observed_value: z
      .number()
      .nullable()
      .describe(
        'Used amount; for a quota with one budget per actor, of the actor with the highest usage. Null if storage was not measured yet.',
      ),
    limit,
    remaining: z.number().nullable().describe('Remaining amount. Null if observed_value is null.'),
    resets_at: z.string().nullable().describe('Start of the next window. Null for storage_bytes.'),
    actors: z
      .array(
        z.object({
          actor_id: z.string().describe('ID of the actor, which may have been deleted'),
          observed_value: z.number().describe('Used amount of the actor'),
          remaining: z.number().describe('Remaining amount of the actor'),
        }),
      )
      .nullable()
      .describe(
        'Ten actors with the highest usage, descending, for a quota with one budget per actor. Null for other quotas.',
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
  .refine(fractions => new Set(fractions).size === fractions.length, 'must not contain duplicates')
  .describe(warnAt.description as string)

/** Returns the problem with a limit for a metric, or null. */
export const limitProblem = (metric: QuotaMetric, value: number): string | null =>
  metric === 'cost_usd' || Number.isSafeInteger(value) ? null : `must be an integer for ${metric}`

/** Whether a quota counts turns, so that their expected usage can be reserved. */
export const isReservable = ({ metric, meter_type }: { metric: QuotaMetric; meter_type?: string | null }): boolean =>
  isSpendMetric(metric) && (meter_type == null || meter_type === 'llm_tokens')

export const RESERVE_PROBLEM = 'is allowed only for tokens, and for cost_usd with meter_type llm_tokens or null'

export const isSpendMetric = (metric: QuotaMetric): boolean => metric === 'tokens' || metric === 'cost_usd'

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
    const addProblem = (path: keyof typeof quota, message: string) =>
      context.addIssue({ code: 'custom', path: [path], message })
    const { metric, scope, window } = quota
    if (!scopesOf[metric].includes(scope)) addProblem('scope', `must be ${scopesOf[metric].join(' or ')} for ${metric}`)
    if ((window === 'current') !== (metric === 'storage_bytes'))
      addProblem('window', metric === 'storage_bytes' ? 'must be current for storage_bytes' : 'must not be current')
    if (metric !== 'cost_usd' && quota.meter_type) addProblem('meter_type', 'is allowed only for cost_usd')
    if (metric !== 'cost_usd' && quota.on_unpriced) addProblem('on_unpriced', 'is allowed only for cost_usd')
    if (scope === 'project' && quota.scope_ref) addProblem('scope_ref', 'must be null for scope project')
    const problem = limitProblem(metric, quota.limit)
    if (problem) addProblem('limit', problem)
    if (quota.reserve && !isReservable(quota)) addProblem('reserve', RESERVE_PROBLEM)
  })
  .meta({
    id: 'QuotaInput',
    example: { scope: 'project', metric: 'tokens', window: 'calendar_month', limit: 5000000, mode: 'enforce' },
  })

/** scope, scope_ref, metric, window and meter_type are immutable. */
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
  /** Marks: the last windows for which reports were written. */
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
