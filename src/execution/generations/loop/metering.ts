import type { UsageDraft } from '../../../control/usage/meter.ts'
import { recordUsageInTx, tokenComponents } from '../../../control/usage/meter.ts'
import { type PricedUsage, priceUsage, totalCost } from '../../../control/usage/price-usage.ts'
import { countsOf, sumUsage, type UsageSums } from '../../../control/usage/totals.ts'
import { type Queryable, sql } from '../../../core/db/sql.ts'
import type { Tx } from '../../../core/db/writer.ts'
import type { Services } from '../../../core/process/services.ts'
import { aiProviderKind } from '../../providers/model.ts'
import type { Callable } from '../../tools/call-types.ts'
import { lostCall } from '../../tools/metering.ts'
import type { AbandonedSteps, AnsweredStep } from '../journal/abandoned-steps.ts'
import { WRITE_MEMORY } from '../journal/open-step.ts'
import type { GenerationRow, OpenStep } from '../model.ts'
import type { LoadedTurn } from './turn-store.ts'

type Generation = Pick<
  GenerationRow,
  | 'id'
  | 'project_id'
  | 'agent_id'
  | 'trace_id'
  | 'actor_id'
  | 'session_id'
  | 'action_id'
  | 'trigger_id'
  | 'orchestration_run_id'
  | 'node_id'
  | 'source'
  | 'publisher_project_id'
>

/** Whom work of a turn is attributed to. */
export const attributionOf = (generation: Generation) => ({
  agent_id: generation.agent_id,
  generation_id: generation.id,
  trace_id: generation.trace_id,
  actor_id: generation.actor_id,
  session_id: generation.session_id,
  action_id: generation.action_id,
  trigger_id: generation.trigger_id,
  orchestration_run_id: generation.orchestration_run_id,
  node_id: generation.node_id,
})

/** What kinds of providers the steps of a turn were served by. */
export type Slugs = ReadonlyMap<string, string>

/** Those of the providers that a turn was loaded with. */
export const slugsOf = ({ provider, route }: Pick<LoadedTurn, 'provider' | 'route'>): Slugs =>
  new Map([...(provider ? [provider] : []), ...(route?.providers ?? [])].map(row => [row.id, row.provider]))

const slug = sql.type(aiProviderKind.row.pick({ id: true, provider: true }))

/** The same, with those that an earlier version of the agent or of its route named. */
async function completed(db: Queryable, slugs: Slugs, steps: readonly AnsweredStep[]): Promise<Slugs> {
  const missing = steps.flatMap(({ ai_provider_id: id }) => (id !== null && !slugs.has(id) ? [id] : []))
  if (missing.length === 0) return slugs
  const found = await db.any(
    slug`select id, provider from ai_providers where id = any(${sql.array([...new Set(missing)], 'text')})`,
  )
  return new Map([...slugs, ...found.map(({ id, provider }): [string, string] => [id, provider])])
}

/**
 * One use for each provider and model that served steps of a turn, in the order in which they did. The first has the key of
 * the turn and what prices of its agent add.
 */
function turnDrafts(
  generation: Generation,
  steps: readonly AnsweredStep[],
  slugs: Slugs,
  call: NonNullable<UsageDraft['call']>,
): UsageDraft[] {
  const served = Map.groupBy(
    steps.filter(({ usage }) => usage !== null),
    ({ ai_provider_id, model }) => JSON.stringify([ai_provider_id, model]),
  )
  return [...served.values()].map((of, index) => {
    const { ai_provider_id, model } = of[0]
    return {
      ...attributionOf(generation),
      idempotency_key: `gen:${generation.id}${index === 0 ? '' : `:${index}`}`,
      project_id: generation.project_id,
      meter_type: 'llm_tokens',
      provider: (ai_provider_id !== null && slugs.get(ai_provider_id)) || 'unknown',
      model: model ?? 'unknown',
      ai_provider_id,
      source: generation.source,
      publisher_project_id: generation.publisher_project_id,
      components: tokenComponents(countsOf(sumUsage(of) as UsageSums)),
      ...(index === 0 ? { call } : {}),
    }
  })
}

/**
 * Prices what the answered calls of a turn that ends have used.
 * @param db the transaction of a caller that has one open
 */
export async function rateTurn(
  services: Services,
  generation: Generation,
  used: { steps: readonly AnsweredStep[]; slugs: Slugs; call: NonNullable<UsageDraft['call']> },
  db?: Queryable,
): Promise<{ rated: PricedUsage[]; usage: UsageSums | null }> {
  const { steps, call } = used
  const usage = sumUsage(steps)
  if (!usage) return { rated: [], usage }
  const slugs = await completed(db ?? services.pool, used.slugs, steps)
  const rated = await priceUsage(services, turnDrafts(generation, steps, slugs, call), db)
  return { rated, usage: { ...usage, cost_usd: totalCost(rated) } }
}

/** As much of a tool of a turn as the use of a call names. */
type Used = { callable: Callable; action: string | null; perform?: unknown }

/** The calls of a step that were started and whose outcome nobody knows. `tools`: those of the turn, where they are known. */
export function lostCalls(
  generation: Generation,
  { step, started, outcomes }: NonNullable<AbandonedSteps['open']>,
  tools?: ReadonlyMap<string, Used>,
): UsageDraft[] {
  return [...started].flatMap(position => {
    const { id, tool_name, args } = step.tool_calls[position]
    const tool = tools?.get(tool_name)
    if (outcomes.has(position) || tool?.perform || tool_name === WRITE_MEMORY) return []
    return [lostTurnCall(generation, { id, tool_name, args }, tool)]
  })
}

/** The use of one such call. */
export function lostTurnCall(
  generation: Generation,
  { id, tool_name, args }: Pick<OpenStep['tool_calls'][number], 'id' | 'tool_name' | 'args'>,
  tool?: Used,
): UsageDraft {
  const named = tool?.callable ?? { id: null, name: tool_name, project_id: generation.project_id }
  const record = `${generation.id}:${id}`
  return lostCall(named, tool?.action ?? null, { ...attributionOf(generation), source: 'agent', record }, args)
}

/** Meters a turn that is ended from outside, and returns what it used; null when no call of it was answered. */
export async function meterStopped(
  tx: Tx,
  services: Services,
  generation: GenerationRow,
  { steps, open }: AbandonedSteps,
): Promise<UsageSums | null> {
  const used = {
    steps: open ? [...steps, open.step] : steps,
    slugs: new Map(),
    call: { input: generation.input, output: null },
  }
  const { rated, usage } = await rateTurn(services, generation, used, tx)
  const calls = open ? await priceUsage(services, lostCalls(generation, open), tx) : []
  recordUsageInTx(tx, [...rated, ...calls])
  return usage
}
