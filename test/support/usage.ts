import { foldProject } from '#control/usage/folds.ts'
import { newId } from '#core/base/ids.ts'
import { sql } from '#core/db/sql.ts'
import { eventually, type TestApp } from './app.ts'

/** A model call of 100 and 50 tokens; `cost` is the cost of its input, null for no price. */
export function tokenUse({
  cost,
  input = 100,
  output = 50,
  cached = 0,
  ...fields
}: { cost: number | null; input?: number; output?: number; cached?: number } & Record<string, unknown>) {
  const component = (name: string, quantity: number, priced: number | null) => ({
    component: name,
    quantity,
    unit: 'token',
    billable: true,
    unit_price: priced === null ? null : priced / quantity,
    cost_usd: priced,
    price_id: priced === null ? null : 'price_1',
  })
  return {
    meter_type: 'llm_tokens',
    provider: 'openai',
    model: 'm',
    cost_usd: cost === null ? null : String(cost),
    tokens: input + output + cached,
    components: [
      component('input_tokens', input, cost),
      component('output_tokens', output, null),
      ...(cached > 0 ? [component('cached_tokens', cached, null)] : []),
    ],
    ...fields,
  }
}

/** Writes usage as work would have, with times and prices of the test's choice. */
export async function insertUsage(
  app: Pick<TestApp, 'services' | 'pool'>,
  projectId: string,
  uses: readonly object[],
): Promise<void> {
  const rows = uses.map(use => {
    const id = newId('ue')
    return { created_at: new Date().toISOString(), ...use, id, idempotency_key: id, project_id: projectId }
  })
  await app.pool.query(sql.unsafe`
    insert into usage_events (id, project_id, idempotency_key, meter_type, provider, model, served_model, service_tier, ai_provider_id, agent_id, generation_id, trace_id,
      actor_id, session_id, source, orchestration_run_id, node_id, trigger_id, action_id, publisher_project_id, cost_usd, tokens, components, created_at)
    select id, project_id, idempotency_key, meter_type, provider, model, served_model, service_tier, ai_provider_id, agent_id, generation_id, trace_id, actor_id, session_id,
      source, orchestration_run_id, node_id, trigger_id, action_id, publisher_project_id, cost_usd, tokens, components, created_at
    from jsonb_populate_recordset(null::usage_events, ${JSON.stringify(rows)}::jsonb)`)
}

/** Folds the usage of a project, also while a process folds it. */
export const foldUsage = (app: Pick<TestApp, 'services' | 'pool'>, projectId: string): Promise<unknown> =>
  eventually(() => foldProject(app.pool, projectId), { what: 'a fold of usage' })

/** Deletes the usage of a project and its sums, so that quotas begin at zero. */
export async function forgetUsage(app: Pick<TestApp, 'services' | 'pool'>, projectId: string): Promise<void> {
  await foldUsage(app, projectId)
  for (const table of ['usage_events', 'folded_usage_sums', 'folded_run_usage'])
    await app.pool.query(sql.unsafe`delete from ${sql.identifier([table])} where project_id = ${projectId}`)
}
