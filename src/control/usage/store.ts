import { type Fragment, sql } from '#core/db/sql.ts'
import type { PricedUsage } from './price-usage.ts'

/** Returns the insert of usage under a condition. A repeated idempotency key has no effect (index usage_events_key). */
export const usageInsert = (usage: readonly PricedUsage[], guard: Fragment): Fragment => sql.fragment`
  insert into usage_events (id, project_id, idempotency_key, meter_type, provider, model, ai_provider_id, agent_id,
    generation_id, trace_id, orchestration_run_id, node_id, tool_id, tool_action, actor_id, session_id, trigger_id, action_id,
    source, publisher_project_id, cost_usd, tokens, components, served_model, service_tier)
  select u.id, u.project_id, u.idempotency_key, u.meter_type, u.provider, u.model, u.ai_provider_id, u.agent_id,
    u.generation_id, u.trace_id, u.orchestration_run_id, u.node_id, u.tool_id, u.tool_action, u.actor_id, u.session_id,
    u.trigger_id, u.action_id, u.source, u.publisher_project_id, u.cost_usd, u.tokens, u.components::jsonb, u.served_model, u.service_tier
  from json_to_recordset(${JSON.stringify(usage.map(({ row }) => row))}::json) as u (id text, project_id text,
    idempotency_key text, meter_type text, provider text, model text, ai_provider_id text, agent_id text, generation_id text,
    trace_id text, orchestration_run_id text, node_id text, tool_id text, tool_action text, actor_id text, session_id text,
    trigger_id text, action_id text, source text, publisher_project_id text, cost_usd numeric, tokens bigint, components text, served_model text,
    service_tier text)
  where ${guard}
  on conflict (idempotency_key) do nothing`

/** Returns the insert as a leading CTE with a trailing comma; empty without usage. */
export const usagePart = (usage: readonly PricedUsage[], guard: Fragment): Fragment =>
  usage.length > 0 ? sql.fragment`used as (${usageInsert(usage, guard)}),` : sql.fragment``
