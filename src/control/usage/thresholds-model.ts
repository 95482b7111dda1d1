import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { createBody, record } from '#core/api/record.ts'

const THRESHOLD_METRICS = ['cost_usd', 'tokens'] as const
const THRESHOLD_WINDOWS = ['calendar_month', 'rolling_24h'] as const

const fields = {
  metric: z.enum(THRESHOLD_METRICS).describe('Compared quantity: cost, or input, cached and output tokens'),
  window: z
    .enum(THRESHOLD_WINDOWS)
    .describe('`calendar_month` in UTC, or `rolling_24h`, the 24 hours before the comparison'),
  threshold: z.number().positive('must be greater than 0').describe('Value at which the event is emitted'),
}

const UsageThreshold = record(
  'UsageThreshold',
  {
    ...fields,
    last_fired_at: z.iso
      .datetime()
      .nullable()
      .describe('Time at which the threshold was last reached. Null until then.'),
    fired_window_key: z
      .string()
      .nullable()
      .describe('Last month in which the event was emitted. Null for rolling_24h.'),
  },
  { updated: false },
)

export const UsageThresholdInput = createBody('UsageThresholdInput', fields, ['metric', 'window', 'threshold'], {
  metric: 'cost_usd',
  window: 'calendar_month',
  threshold: 100,
})

export const thresholdKind = kind({
  name: 'usage_threshold',
  prefix: 'uthr',
  table: 'usage_thresholds',
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  record: UsageThreshold,
  hidden: { armed: z.boolean() },
  events: ['created', 'deleted', 'crossed'],
  eventNotes: 'crossed adds threshold_id, window_key and observed_value',
})
export type ThresholdRow = z.output<typeof thresholdKind.row>
