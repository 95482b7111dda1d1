import { answerUsage, recordUsageInTx, tokenComponents, type UsageDraft } from '#control/usage/meter.ts'
import { type PricedUsage, priceUsage, totalCost } from '#control/usage/price-usage.ts'
import { countsOf, isUnreported, sumUsage, type UsageSums } from '#control/usage/totals.ts'
import type { Services } from '#core/base/services.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { aiProviderKind } from '#execution/providers/model.ts'
import type { UnusedAnswer } from '#execution/providers/model-messages.ts'
import type { Callable } from '#execution/tools/call-types.ts'
import { lostCall } from '#execution/tools/metering.ts'
import { WRITE_MEMORY } from '../journal/step.ts'
import type { AbandonedSteps, AnsweredStep } from '../journal/store.ts'
import type { GenerationRow, OpenStep } from '../model.ts'
import type { LoadedTurn } from './turn-store.ts'

type MeteredTurn = Pick<
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

/** Returns the attribution of usage of a turn. */
export const attributionOf = (generation: MeteredTurn) => ({
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

/** Provider types by provider id. */
export type ProviderTypes = ReadonlyMap<string, string>

/** Returns the types of the providers that a turn was loaded with. */
export const providerTypesOf = ({ provider, route }: Pick<LoadedTurn, 'provider' | 'route'>): ProviderTypes =>
  new Map([...(provider ? [provider] : []), ...(route?.providers ?? [])].map(row => [row.id, row.provider]))

const providerTypeRow = sql.type(aiProviderKind.row.pick({ id: true, provider: true }))

/** Adds the types of providers of earlier versions of the agent or its route. */
async function addMissingProviderTypes(
  db: Queryable,
  providerTypes: ProviderTypes,
  steps: readonly AnsweredStep[],
): Promise<ProviderTypes> {
  const missing = steps.flatMap(({ ai_provider_id: id }) => (id !== null && !providerTypes.has(id) ? [id] : []))
  if (missing.length === 0) return providerTypes
  const found = await db.any(
    providerTypeRow`select id, provider from ai_providers where id = any(${sql.array([...new Set(missing)], 'text')})`,
  )
  return new Map([...providerTypes, ...found.map(({ id, provider }): [string, string] => [id, provider])])
}

/**
 * Returns one usage draft for each provider, model and tier that served steps of a turn, in order of first use. The first has
 * the key of the turn and its call, which the agent's price components need.
 */
function turnDrafts(
  generation: MeteredTurn,
  steps: readonly AnsweredStep[],
  providerTypes: ProviderTypes,
  call: NonNullable<UsageDraft['call']>,
): UsageDraft[] {
  const served = Map.groupBy(
    steps.filter(step => step.usage !== null || isUnreported(step)),
    ({ ai_provider_id, model, served_model, service_tier }) =>
      JSON.stringify([ai_provider_id, model, served_model ?? null, service_tier ?? null]),
  )
  return [...served.values()].map((steps, index) => {
    const { ai_provider_id, model, served_model, service_tier } = steps[0]
    return {
      ...attributionOf(generation),
      idempotency_key: `gen:${generation.id}${index === 0 ? '' : `:${index}`}`,
      project_id: generation.project_id,
      meter_type: 'llm_tokens',
      provider: (ai_provider_id !== null && providerTypes.get(ai_provider_id)) || 'unknown',
      model: model ?? 'unknown',
      served_model: served_model ?? null,
      service_tier: service_tier ?? null,
      ai_provider_id,
      source: generation.source,
      publisher_project_id: generation.publisher_project_id,
      components: steps.flatMap(({ usage }) => tokenComponents(usage && countsOf(usage))),
      ...(index === 0 ? { call } : {}),
    }
  })
}

/** Returns the usage of an answer of the model that its call did not return. */
export const draftUnusedAnswer = (
  generation: MeteredTurn & Pick<GenerationRow, 'attempt'>,
  answer: UnusedAnswer,
  { type, step, n }: { type: string; step: number; n: number },
): UsageDraft => ({
  ...attributionOf(generation),
  idempotency_key: `gen:${generation.id}:unused:${generation.attempt}:${step}:${n}`,
  project_id: generation.project_id,
  meter_type: 'llm_tokens',
  provider: type,
  model: answer.model,
  ai_provider_id: answer.ai_provider_id,
  source: generation.source,
  publisher_project_id: generation.publisher_project_id,
  ...answerUsage(answer),
})

/**
 * Prices the model calls of a turn that settles.
 * @param db the caller's open transaction, if any
 */
export async function priceTurn(
  services: Services,
  generation: MeteredTurn,
  used: { steps: readonly AnsweredStep[]; providerTypes: ProviderTypes; call: NonNullable<UsageDraft['call']> },
  db?: Queryable,
): Promise<{ rated: PricedUsage[]; usage: UsageSums | null }> {
  const { steps, call } = used
  const usage = sumUsage(steps)
  if (!usage && !steps.some(isUnreported)) return { rated: [], usage }
  const providerTypes = await addMissingProviderTypes(db ?? services.pool, used.providerTypes, steps)
  const rated = await priceUsage(services, turnDrafts(generation, steps, providerTypes, call), db)
  return { rated, usage: usage && { ...usage, cost_usd: totalCost(rated) } }
}

/** Fields of a tool that the usage of a call requires. */
type CalledTool = { callable: Callable; action: string | null; perform?: unknown }

/** Returns the usage of started calls without an outcome. `tools`: the tools of the turn, if loaded. */
export function draftLostCalls(
  generation: MeteredTurn,
  { step, started, outcomes }: NonNullable<AbandonedSteps['open']>,
  tools?: ReadonlyMap<string, CalledTool>,
): UsageDraft[] {
  return [...started].flatMap(position => {
    const { id, tool_name, args } = step.tool_calls[position]
    const tool = tools?.get(tool_name)
    if (outcomes.has(position) || tool?.perform || tool_name === WRITE_MEMORY) return []
    return [draftLostCall(generation, { id, tool_name, args }, tool)]
  })
}

/** Returns the usage of a call without an outcome. */
export function draftLostCall(
  generation: MeteredTurn,
  { id, tool_name, args }: Pick<OpenStep['tool_calls'][number], 'id' | 'tool_name' | 'args'>,
  tool?: CalledTool,
): UsageDraft {
  const called = tool?.callable ?? { id: null, name: tool_name, project_id: generation.project_id }
  const record = `${generation.id}:${id}`
  return lostCall(called, tool?.action ?? null, { ...attributionOf(generation), source: 'agent', record }, args)
}

/** Meters a turn that is ended from outside and returns its usage; null without a model answer. */
export async function meterAbortedTurn(
  tx: Tx,
  services: Services,
  generation: GenerationRow,
  { steps, open }: AbandonedSteps,
): Promise<UsageSums | null> {
  const used = {
    steps: open ? [...steps, open.step] : steps,
    providerTypes: new Map(),
    call: { input: generation.input, output: null },
  }
  const { rated, usage } = await priceTurn(services, generation, used, tx)
  const calls = open ? await priceUsage(services, draftLostCalls(generation, open), tx) : []
  recordUsageInTx(services, tx, [...rated, ...calls])
  return usage
}
