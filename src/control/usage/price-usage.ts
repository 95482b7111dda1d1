import { Big } from 'big.js'
import { srn } from '#core/api/kind.ts'
import { AppError, serviceNotReady } from '#core/base/errors.ts'
import { withDoubles } from '#core/base/exact-json.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import { type EvaluationBudget, ExpressionError, freshBudget } from '#core/expressions/evaluate.ts'
import { evaluate } from '#core/expressions/evaluation.ts'
import { readPartOf } from '#core/expressions/references.ts'
import { type QueueMessage, queueMessage } from '#core/queues/queue.ts'
import { sealJson } from '#core/secrets/json.ts'
import type { ActivityEntry } from '../activity/record.ts'
import { usageKind } from './model.ts'
import { type CachedPrice, GLOBAL_PRICES, type PriceBook, priceBooks, priceKey } from './price-cache.ts'
import { quantityQueue, sealedForQuantities } from './quantity-queue.ts'
import { TOKEN_PARTS, type UsageComponent, type UsageDraft, wholeOf } from './usage-draft.ts'

/** Usage with its costs, ready to be written. */
export type PricedUsage = {
  /** Exact numbers are text; `components` is JSON text with exact numbers. */
  row: Record<string, string | number | null> & { project_id: string }
  cost_usd: Big | null
  /** Measured quantities, as in the row. */
  quantities: readonly Pick<UsageComponent, 'component' | 'quantity' | 'unit'>[]
  /** Whether the project has thresholds. */
  watched: boolean
  /** Activity entries about invalid quantities. */
  invalid: ActivityEntry[]
}

type PricedComponent = UsageComponent & { unit_price: Big | null; cost_usd: Big | null; price_id: string | null }

const COST_DECIMALS = 10

/** Components that tokens quotas and thresholds count, besides their parts. */
const COUNTED_TOKENS = ['input_tokens', 'cached_tokens', 'output_tokens']
/** The component whose price applies to one without a separate price. */
const PRICE_FALLBACKS: Readonly<Record<string, string>> = {
  ...TOKEN_PARTS,
  cached_tokens: 'input_tokens',
  cache_write_tokens: 'input_tokens',
}

/**
 * Prices usage at the current prices and drops drafts without quantities. Prices are cached for a minute per project;
 * otherwise it costs one round trip. Quantities for which no thread is free are queued before the usage is written
 * without them, and become separate usage.
 * @param db the caller's open transaction
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
  const priced: PricedUsage[] = []
  const late: QueueMessage[] = []
  for (const draft of used) priced.push(await priceDraft(services, draft, books, now, late))
  if (late.length > 0) await services.queues.send(late)
  return priced
}

async function priceDraft(
  services: Services,
  draft: UsageDraft,
  books: ReadonlyMap<string, PriceBook>,
  now: number,
  late: QueueMessage[],
): Promise<PricedUsage> {
  const { config } = services
  const { components, call, project_id, publisher_project_id } = draft
  const bookOf = (id: string) => books.get(id) as PriceBook
  const owner = publisher_project_id ?? project_id
  // A turn of a shared agent uses the providers and prices of its publisher; other work uses the project's.
  const payer = draft.meter_type === 'llm_tokens' ? owner : project_id
  const measured =
    draft.source === 'embedding'
      ? components.map(component =>
          applyPrice(component, {
            id: null,
            unit_price: new Big(config.EMBEDDING_INPUT_1M_TOKEN_PRICE_USD).div(1_000_000),
          }),
        )
      : pricedComponents(draft, [bookOf(payer), bookOf(GLOBAL_PRICES)], now)
  const resource = call && pricedResource(draft, owner)
  const prices = resource ? pricesInEffect(bookOf(owner).resources.get(resource), now) : []
  const of = { srn: resource as string, project_id: owner }
  const added = prices.length > 0 ? await resourceComponents(services, draft, of, prices, USAGE_WAIT_MS) : NO_COMPONENTS
  if (added.busy.length > 0) late.push(quantityMessage(services, draft, of, added.busy))
  return pricedUsage(draft, { measured, added: added.components }, bookOf(project_id).watched, added.invalid)
}

/** Prices the components of model calls, and adds up quantities of the same price. */
function pricedComponents(draft: UsageDraft, books: [PriceBook, PriceBook], now: number): PricedComponent[] {
  const sizes = books.flatMap(book => book.sizes)
  const prices = new Map<string, CachedPrice | null>()
  const sums = new Map<string, { component: UsageComponent; price: CachedPrice | null }>()
  for (const component of draft.components) {
    if (component.quantity <= 0) continue
    const { prompt_tokens = 0 } = component
    const kind = `${component.component} ${component.unit} ${component.billable}`
    const sized = `${kind} ${sizes.filter(size => prompt_tokens > size).length}`
    let price = prices.get(sized)
    if (price === undefined) {
      price = component.billable ? findPrice(draft, component, books, now) : null
      prices.set(sized, price)
    }
    const key = `${kind} ${price?.id}`
    const sum = sums.get(key)
    if (sum) sum.component.quantity += component.quantity
    else sums.set(key, { component: { ...component }, price })
  }
  return [...sums.values()].map(({ component, price }) => applyPrice(component, price))
}

function pricedUsage(
  draft: UsageDraft,
  { measured, added }: { measured: PricedComponent[]; added: PricedComponent[] },
  watched: boolean,
  invalid: ActivityEntry[],
): PricedUsage {
  const { components: _, call: __, project_id, publisher_project_id, ...columns } = draft
  const all = [...measured, ...added]
  const costs = all.flatMap(({ cost_usd }) => cost_usd ?? [])
  const cost_usd = costs.length === 0 ? null : costs.reduce((sum, cost) => sum.plus(cost))
  return {
    row: {
      ...columns,
      id: newId(usageKind.prefix),
      project_id,
      publisher_project_id: publisher_project_id ?? null,
      // Used for pricing but not stored: it belongs to the publisher.
      ai_provider_id: publisher_project_id ? null : (draft.ai_provider_id ?? null),
      cost_usd: cost_usd?.toFixed() ?? null,
      tokens:
        draft.meter_type === 'llm_tokens'
          ? measured.reduce(
              (sum, { component, quantity }) => (COUNTED_TOKENS.includes(wholeOf(component)) ? sum + quantity : sum),
              0,
            )
          : 0,
      components: `[${all.map(componentText).join(',')}]`,
    },
    cost_usd,
    quantities: measured,
    watched,
    invalid,
  }
}

/** Returns the total cost of usage; null if nothing is priced. */
export function totalCost(usage: readonly PricedUsage[]): number | null {
  const costs = usage.flatMap(({ cost_usd }) => cost_usd ?? [])
  return costs.length === 0 ? null : costs.reduce((sum, cost) => sum.plus(cost)).toNumber()
}

const applyPrice = (
  component: UsageComponent,
  price: { id: string | null; unit_price: Big } | null,
): PricedComponent => ({
  ...component,
  unit_price: price?.unit_price ?? null,
  cost_usd: price?.unit_price.times(component.quantity).round(COST_DECIMALS, Big.roundHalfEven) ?? null,
  price_id: price?.id ?? null,
})

/** Returns a component as JSON with exact numbers; JSON.stringify would limit them to 17 digits. */
function componentText({
  component,
  quantity,
  unit,
  billable,
  unit_price,
  cost_usd,
  price_id,
}: PricedComponent): string {
  const texts = JSON.stringify({ component, unit, billable, price_id }).slice(1, -1)
  return `{${texts},"quantity":${quantity},"unit_price":${unit_price ?? null},"cost_usd":${cost_usd ?? null}}`
}

/** A component of a provider's model, priced for a project. */
type Priceable = {
  project_id: string
  ai_provider_id: string
  provider: string
  model: string
  component: string
  unit: string
}

/** Returns the components without a current price, as distinct provider, model and component. */
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
  const unpriced = components.filter(of => !findPrice(of, of, [bookOf(of.project_id), bookOf(GLOBAL_PRICES)], now))
  const rows = unpriced.map(({ provider, model, component }) => ({ provider, model, component }))
  return [...new Map(rows.map(row => [JSON.stringify(row), row])).values()]
}

/** Returns the price of a component: of its AI provider, otherwise of the project, otherwise the global price. */
function findPrice(
  {
    ai_provider_id,
    provider,
    model,
    service_tier: tier = null,
  }: Pick<UsageDraft, 'ai_provider_id' | 'provider' | 'model' | 'service_tier'>,
  { component, unit, prompt_tokens = 0 }: Pick<UsageComponent, 'component' | 'unit' | 'prompt_tokens'>,
  [own, global]: [PriceBook, PriceBook],
  now: number,
): CachedPrice | null {
  const scoped = (name: string): CachedPrice | null => {
    const of = (book: PriceBook, key: string) =>
      priceInEffect(book.prices.get(key) ?? [], now, { unit, tier, prompt_tokens })
    return (
      (ai_provider_id && of(own, priceKey({ ai_provider_id }, model, name))) ||
      of(own, priceKey({ provider }, model, name)) ||
      of(global, priceKey({ provider }, model, name))
    )
  }
  for (let name = component; name !== undefined; name = PRICE_FALLBACKS[name]) {
    const price = scoped(name)
    if (price) return price
  }
  return null
}

type PricedCall = { unit?: string; tier?: string | null; prompt_tokens?: number }

/**
 * Returns the price of a component in effect, from its prices in order; null without any. Of each tier and size of prompts,
 * only the latest price counts, which may have been ended.
 */
function priceInEffect(
  prices: readonly CachedPrice[],
  now: number,
  { unit, tier = null, prompt_tokens = 0 }: PricedCall = {},
): CachedPrice | null {
  let ended: CachedPrice | null = null
  for (const price of prices) {
    if ((unit !== undefined && price.unit !== unit) || price.effective_from > now) continue
    if ((price.tier !== null && price.tier !== tier) || prompt_tokens <= (price.above_tokens ?? -1)) continue
    if (ended && ended.tier === price.tier && ended.above_tokens === price.above_tokens) continue
    if (price.effective_until > now) return price
    ended = price
  }
  return null
}

/** Returns the SRN of the tool or agent whose prices add components. */
function pricedResource({ meter_type, tool_id, agent_id }: UsageDraft, owner: string): string | null {
  if (meter_type === 'tool_execution') return tool_id ? srn(owner, 'tool', tool_id) : null
  return agent_id ? srn(owner, 'agent', agent_id) : null
}

const pricesInEffect = (byComponent: readonly (readonly CachedPrice[])[] | undefined, now: number): CachedPrice[] =>
  (byComponent ?? []).flatMap(prices => priceInEffect(prices, now) ?? [])

/** Price that adds a component to the usage of a tool or agent. */
type QuantityPrice = Pick<CachedPrice, 'id' | 'component' | 'unit' | 'quantity' | 'unit_price'>

/** Tool or agent with prices, and its project. */
type PricedResource = { srn: string; project_id: string }

/** `busy`: prices for whose quantities no thread is free. */
type ResourceComponents<P> = { components: PricedComponent[]; invalid: ActivityEntry[]; busy: P[] }
const NO_COMPONENTS: ResourceComponents<never> = { components: [], invalid: [], busy: [] }

/** Computes the components that prices of a tool or agent add; their expressions share one evaluation budget. */
async function resourceComponents<P extends QuantityPrice>(
  services: Services,
  { call, tool_id, agent_id, generation_id, meter_type }: UsageDraft,
  resource: PricedResource,
  prices: readonly P[],
  waitMs: number,
): Promise<ResourceComponents<P>> {
  const spent = freshBudget()
  const added: ResourceComponents<P> = { components: [], invalid: [], busy: [] }
  for (const price of prices) {
    const { component, unit } = price
    const isBusy = price.quantity !== null && added.busy.length > 0
    const quantity = isBusy ? 'busy' : await evaluateQuantity(services, resource.project_id, price, call, spent, waitMs)
    if (quantity === 'busy') added.busy.push(price)
    if (quantity === 0 || quantity === 'busy') continue
    added.components.push(
      applyPrice({ component, quantity: quantity ?? 0, unit, billable: true }, quantity === null ? null : price),
    )
    if (quantity !== null) continue
    added.invalid.push({
      project_id: resource.project_id,
      kind: 'usage_quantity_invalid',
      summary: `Quantity of ${component} is not a number of at least 0`,
      detail: { resource: resource.srn, component, price_id: price.id },
      agent_id: agent_id ?? null,
      generation_id: generation_id ?? null,
      ref_id: (meter_type === 'tool_execution' ? tool_id : agent_id) ?? null,
    })
  }
  return added
}

/** Longest wait for a thread: usage may be priced in a transaction. */
const USAGE_WAIT_MS = 1000

/** Largest quantity, and of tokens, whose sums are 64-bit integers. */
const MAX_QUANTITY = Number.MAX_SAFE_INTEGER
const MAX_TOKENS = 1e9

/**
 * Evaluates the quantity expression of a price; null if the result is not a number from 0 to its maximum, `busy` if no
 * thread is free: the usage belongs to work that has ended and cannot fail.
 */
async function evaluateQuantity(
  services: Services,
  project_id: string,
  { quantity, unit }: QuantityPrice,
  call: UsageDraft['call'],
  spent: EvaluationBudget,
  waitMs: number,
): Promise<number | null | 'busy'> {
  if (quantity === null) return 1
  try {
    const value = withDoubles(await evaluate(services, project_id, quantity, call, { spent, waitMs }))
    const most = unit === 'token' ? MAX_TOKENS : MAX_QUANTITY
    return typeof value === 'number' && value >= 0 && value <= most ? value : null
  } catch (error) {
    if (error instanceof ExpressionError) return null
    if (error instanceof AppError && error.code === 'SERVICE_NOT_READY') return 'busy'
    throw error
  }
}

/** Usage whose quantities are computed later, at the prices of its time. */
export type LateUsage = {
  draft: UsageDraft
  resource: PricedResource
  prices: (Omit<QuantityPrice, 'unit_price'> & { unit_price: string })[]
}

/** Time after which late usage is priced: by then the transaction that wrote the usage has ended. */
const LATE_MS = 5000

/** Returns the message of usage for whose quantities no thread is free. It contains the part of the call that they read. */
function quantityMessage(
  { secrets, clock }: Services,
  draft: UsageDraft,
  resource: PricedResource,
  busy: readonly CachedPrice[],
): QueueMessage {
  const { idempotency_key, call } = draft
  const expressions = busy.map(({ quantity }) => quantity)
  const late: LateUsage = {
    draft: { ...draft, components: [], call: readPartOf(call, expressions) as UsageDraft['call'] },
    resource,
    prices: busy.map(({ id, component, unit, quantity, unit_price }) => ({
      id,
      component,
      unit,
      quantity,
      unit_price: unit_price.toFixed(),
    })),
  }
  const ref = { project_id: resource.project_id, idempotency_key }
  const sealed = sealJson({ secrets }, late, sealedForQuantities(ref))
  const startAfter = new Date(clock.now().getTime() + LATE_MS)
  return queueMessage(quantityQueue, { ...ref, sealed }, { startAfter })
}

/**
 * Prices late usage, as separate usage with a key derived from the original one.
 * @throws SERVICE_NOT_READY if no thread is free
 */
export async function priceLateUsage(
  services: Services,
  { draft, resource, prices }: LateUsage,
  waitMs: number,
): Promise<PricedUsage | null> {
  const books = await priceBooks(services, [draft.project_id])
  const exact = prices.map(price => ({ ...price, unit_price: new Big(price.unit_price) }))
  const { components: added, invalid, busy } = await resourceComponents(services, draft, resource, exact, waitMs)
  if (busy.length > 0) throw serviceNotReady({ expressions: 'busy' }, { message: 'No thread is free' })
  if (added.length === 0) return null
  const late = { ...draft, idempotency_key: `${draft.idempotency_key}:quantities` }
  return pricedUsage(late, { measured: [], added }, books.get(draft.project_id)?.watched ?? false, invalid)
}
