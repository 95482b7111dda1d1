import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { record } from '../../core/api/record.ts'

export const METER_TYPES = ['llm_tokens', 'compute_execution', 'tool_execution', 'api_request', 'storage'] as const

export const RatedComponent = z.object({
  component: z.string(),
  quantity: z.number(),
  unit: z.string(),
  billable: z.boolean().describe('False for what is part of another component'),
  unit_price: z.number().nullable().describe('In USD; null without a price'),
  cost_usd: z.number().nullable(),
  price_id: z.string().nullable().describe('The price that was in force; null for those of the deployment, too'),
})

const id = z.string().nullable()

export const UsageEvent = record(
  'UsageEvent',
  {
    meter_type: z.enum(METER_TYPES).describe('What was used'),
    provider: z.string().describe('Who bills it; `platform` for what the deployment does itself'),
    model: z.string().describe('The model or, of the platform, the unit'),
    ai_provider_id: id.describe('The provider that served; null where it is that of a project that shares the agent'),
    agent_id: id,
    generation_id: id,
    trace_id: id,
    orchestration_run_id: id,
    node_id: id,
    tool_id: id,
    tool_action: id.describe('Action of the tool'),
    actor_id: id.describe('The end user of the session'),
    session_id: id,
    trigger_id: id.describe('The trigger that began it'),
    action_id: id.describe('The label that the request gave'),
    source: id.describe('Which part of the platform caused it; null for ordinary turns'),
    publisher_project_id: id.describe('Project that shares what was used; null for what is the own'),
    cost_usd: z.number().nullable().describe('Sum of the priced components; null when none is'),
    components: z.array(RatedComponent),
  },
  { updated: false },
)

/** Written by the platform only, never changed. Ids outlive what they name. */
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
