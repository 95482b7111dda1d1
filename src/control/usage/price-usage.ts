import { Big } from 'big.js'
import { newId } from '../../core/api/ids.ts'
import { srn } from '../../core/api/kind.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { type EvaluationBudget, ExpressionError, evaluate, freshBudget } from '../../core/expressions/evaluate.ts'
import type { Services } from '../../core/process/services.ts'
import type { ActivityEntry } from '../activity/record.ts'
import { usageKind } from './model.ts'
import { type CachedPrice, GLOBAL, type PriceBook, priceBooks, priceKey } from './price-cache.ts'
import type { UsageComponent, UsageDraft } from './usage-draft.ts'

/** Usage with its costs, as it is written. */
export type PricedUsage = {
  /** Exact numbers are text, and `components` JSON text with exact numbers in it. */
  row: Record<string, string | number | null> & { project_id: string }
  cost_usd: Big | null
  /** The quantities used, as in the row. */
  quantities: readonly Pick<UsageComponent, 'component' | 'quantity' | 'unit'>[]
  /** The project has thresholds. */
  watched: boolean
  /** What is to be told of quantities that are none. */
  invalid: ActivityEntry[]
}

type RatedComponent = UsageComponent & { unit_price: Big | null; cost_usd: Big | null; price_id: string | null }

const PLACES = 10

/** What tokens quotas and thresholds count. */
const COUNTED = ['input_tokens', 'cached_tokens', 'output_tokens']
/** Without a price of their own these cost what input does. */
const LIKE_INPUT = ['cached_tokens', 'cache_write_tokens']

/**
 * Prices usage as of now; what has no quantities is left out. From what the process knows, at no round trip, save for the
 * first time in a minute that it rates for a project.
 * @param db the transaction of a caller that has one open
 */
export async function priceUsage(
  services: Services,
  drafts: readonly UsageDraft[],
  db?: Queryable,
): Promise<PricedUsage[]> {
  const used = drafts.filter(({ components }) => components.some(({ quantity }) => quantity > 0))
  if (used.length === 0) return []
  const books = await priceBooks(
    services,
    used.flatMap(({ project_id, publisher_project_id }) => [project_id, publisher_project_id ?? project_id]),
    db,
  )
  const now = services.clock.now().getTime()
  return used.map(draft => rate(services, draft, books, now))
}

function rate(
  { config }: Services,
  draft: UsageDraft,
  books: ReadonlyMap<string, PriceBook>,
  now: number,
): PricedUsage {
  const { components, call, project_id, publisher_project_id, ...named } = draft
  const bookOf = (id: string) => books.get(id) as PriceBook
  const owner = publisher_project_id ?? project_id
  // A turn of a shared agent runs on the publisher's providers and prices; other work on those of who uses it.
  const payer = draft.meter_type === 'llm_tokens' ? owner : project_id
  const rated = components
    .filter(({ quantity }) => quantity > 0)
    .map((component): RatedComponent => {
      if (draft.source === 'embedding')
        return priced(component, {
          id: null,
          unit_price: new Big(config.EMBEDDING_INPUT_1M_TOKEN_PRICE_USD).div(1_000_000),
        })
      return priced(
        component,
        component.billable ? priceOf(draft, component, [bookOf(payer), bookOf(GLOBAL)], now) : null,
      )
    })
  const resource = call && resourceOf(draft, owner)
  const added = resource ? addedBy(draft, { srn: resource, project_id: owner }, bookOf(owner), now) : NOTHING
  const all = [...rated, ...added.components]
  const costs = all.flatMap(({ cost_usd }) => cost_usd ?? [])
  const cost_usd = costs.length === 0 ? null : costs.reduce((sum, cost) => sum.plus(cost))
  return {
    row: {
      ...named,
      id: newId(usageKind.prefix),
      project_id,
      publisher_project_id: publisher_project_id ?? null,
      // Priced by it, but not told: it belongs to the project that shares.
      ai_provider_id: publisher_project_id ? null : (draft.ai_provider_id ?? null),
      cost_usd: cost_usd?.toFixed() ?? null,
      tokens:
        draft.meter_type === 'llm_tokens'
          ? rated.reduce((sum, { component, quantity }) => (COUNTED.includes(component) ? sum + quantity : sum), 0)
          : 0,
      components: `[${all.map(componentText).join(',')}]`,
    },
    cost_usd,
    quantities: rated,
    watched: bookOf(project_id).watched,
    invalid: added.invalid,
  }
}

/** What rated usage costs; null when nothing of it is priced. */
export function totalCost(rated: readonly PricedUsage[]): number | null {
  const costs = rated.flatMap(({ cost_usd }) => cost_usd ?? [])
  return costs.length === 0 ? null : costs.reduce((sum, cost) => sum.plus(cost)).toNumber()
}

const priced = (component: UsageComponent, price: { id: string | null; unit_price: Big } | null): RatedComponent => ({
  ...component,
  unit_price: price?.unit_price ?? null,
  cost_usd: price?.unit_price.times(component.quantity).round(PLACES, Big.roundHalfEven) ?? null,
  price_id: price?.id ?? null,
})

/** A component as JSON whose numbers are exact: one that JavaScript writes has 17 digits at most. */
function componentText({
  component,
  quantity,
  unit,
  billable,
  unit_price,
  cost_usd,
  price_id,
}: RatedComponent): string {
  const texts = JSON.stringify({ component, unit, billable, price_id }).slice(1, -1)
  return `{${texts},"quantity":${quantity},"unit_price":${unit_price ?? null},"cost_usd":${cost_usd ?? null}}`
}

/** A component of a model of a provider, priced by a project. */
type Priceable = {
  project_id: string
  ai_provider_id: string
  provider: string
  model: string
  component: string
  unit: string
}

/** Those of some components that would have no price now, as provider, model and component, each once. */
export async function unpricedComponents(
  services: Services,
  components: readonly Priceable[],
  db?: Queryable,
): Promise<{ provider: string; model: string; component: string }[]> {
  const books = await priceBooks(
    services,
    components.map(({ project_id }) => project_id),
    db,
  )
  const bookOf = (id: string) => books.get(id) as PriceBook
  const now = services.clock.now().getTime()
  const unpriced = components.filter(of => !priceOf(of, of, [bookOf(of.project_id), bookOf(GLOBAL)], now))
  const rows = unpriced.map(({ provider, model, component }) => ({ provider, model, component }))
  return [...new Map(rows.map(row => [JSON.stringify(row), row])).values()]
}

/** The price of a component: of its AI provider, else of the project, else of all projects. */
function priceOf(
  { ai_provider_id, provider, model }: Pick<UsageDraft, 'ai_provider_id' | 'provider' | 'model'>,
  { component, unit }: Pick<UsageComponent, 'component' | 'unit'>,
  [own, global]: [PriceBook, PriceBook],
  now: number,
): CachedPrice | null {
  const scoped = (name: string): CachedPrice | null => {
    const of = (book: PriceBook, key: string) => inForce(book.prices.get(key) ?? [], unit, now)
    return (
      (ai_provider_id && of(own, priceKey({ ai_provider_id }, model, name))) ||
      of(own, priceKey({ provider }, model, name)) ||
      of(global, priceKey({ provider }, model, name))
    )
  }
  return scoped(component) ?? (LIKE_INPUT.includes(component) ? scoped('input_tokens') : null)
}

/** Of prices of a component, latest first, the one in force. */
const inForce = (prices: readonly CachedPrice[], unit: string, now: number): CachedPrice | null =>
  prices.find(price => price.unit === unit && price.effective_from <= now) ?? null

/** The tool or agent whose own prices add components. */
function resourceOf({ meter_type, tool_id, agent_id }: UsageDraft, owner: string): string | null {
  if (meter_type === 'tool_execution') return tool_id ? srn(owner, 'tool', tool_id) : null
  return agent_id ? srn(owner, 'agent', agent_id) : null
}

type Added = { components: RatedComponent[]; invalid: ActivityEntry[] }
const NOTHING: Added = { components: [], invalid: [] }

/** The components that prices of a tool or agent add. What their quantities may cost is bounded for all of them together. */
function addedBy(
  { call, tool_id, agent_id, generation_id, meter_type }: UsageDraft,
  resource: { srn: string; project_id: string },
  book: PriceBook,
  now: number,
): Added {
  const found = book.resources.get(resource.srn)
  if (!found) return NOTHING
  const spent = freshBudget()
  const added: Added = { components: [], invalid: [] }
  for (const prices of found) {
    const price = prices.find(({ effective_from }) => effective_from <= now)
    if (!price) continue
    const { component, unit } = price
    const quantity = quantityOf(price, call, spent)
    if (quantity === 0) continue
    added.components.push(
      priced({ component, quantity: quantity ?? 0, unit, billable: true }, quantity === null ? null : price),
    )
    if (quantity !== null) continue
    added.invalid.push({
      project_id: resource.project_id,
      kind: 'usage_quantity_invalid',
      summary: `The quantity of ${component} is not a number of at least 0`,
      detail: { resource: resource.srn, component, price_id: price.id },
      agent_id: agent_id ?? null,
      generation_id: generation_id ?? null,
      ref_id: (meter_type === 'tool_execution' ? tool_id : agent_id) ?? null,
    })
  }
  return added
}

/** What a price's expression makes of a call; null when that is no quantity, or one that could not be added up. */
function quantityOf({ quantity }: CachedPrice, call: UsageDraft['call'], spent: EvaluationBudget): number | null {
  if (quantity === null) return 1
  try {
    const value = evaluate(quantity, call, spent)
    return typeof value === 'number' && value >= 0 && value <= Number.MAX_SAFE_INTEGER ? value : null
  } catch (error) {
    if (error instanceof ExpressionError) return null
    throw error
  }
}
