import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { record } from '#core/api/record.ts'

export const METER_TYPES = ['llm_tokens', 'compute_execution', 'tool_execution', 'api_request', 'storage'] as const

export const RatedComponent = z.object({
  component: z.string(),
  quantity: z.number(),
  unit: z.string(),
  billable: z.boolean().describe('Whether the component is billed; false if it is included in another component'),
  unit_price: z.number().nullable().describe('Price per unit in USD. Null without a price.'),
  cost_usd: z.number().nullable(),
  price_id: z
    .string()
    .nullable()
    .describe('ID of the applied price. Null without a price or for a price from the deployment settings.'),
})

const id = z.string().nullable()

export const UsageEvent = record(
  'UsageEvent',
  {
    meter_type: z.enum(METER_TYPES).describe('Type of usage'),
    provider: z.string().describe('Billing provider; `platform` for usage of the deployment'),
    model: z.string().describe('Requested model, or unit for usage of the platform'),
    served_model: z.string().nullable().describe('Model that the vendor names in its answer. Null if it names none.'),
    service_tier: z
      .string()
      .nullable()
      .describe('Service tier that the vendor names in its answer. Null if it names none.'),
    ai_provider_id: id.describe('ID of the AI provider. Null if it belongs to the project that shares the agent.'),
    agent_id: id,
    generation_id: id,
    trace_id: id,
    orchestration_run_id: id,
    node_id: id,
    tool_id: id,
    tool_action: id.describe('Action of the tool'),
    actor_id: id.describe('ID of the end user'),
    session_id: id,
    trigger_id: id.describe('ID of the trigger that started the work'),
    action_id: id.describe('Label from the request'),
    source: id.describe('Part of the platform that caused the usage. Null for ordinary turns.'),
    publisher_project_id: id.describe(
      'ID of the project that shares the used resource. Null for resources of the project.',
    ),
    cost_usd: z.number().nullable().describe('Sum of the priced components. Null if no component is priced.'),
    components: z.array(RatedComponent),
    event_count: z
      .int()
      .describe('Number of events that it sums up. 1 unless it is the roll-up of the events of an hour.'),
  },
  { updated: false },
)

/**
 * Only the platform writes events; they never change, but may be replaced by their sum. Their ids may refer to deleted
 * resources.
 */
export const usageKind = kind({
  name: 'usage',
  plural: 'usage_events',
  prefix: 'ue',
  table: 'usage_events',
  countKept: true,
  references: [
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
    { kind: 'ai_provider', column: 'ai_provider_id', on_delete: 'force', stays: true },
  ],
  record: UsageEvent,
})
export type UsageRow = z.output<typeof usageKind.row>
