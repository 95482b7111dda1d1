import { inlineSchema, type JsonObject } from '../../core/api/flatten.ts'
import { resourceType } from '../../core/api/resource-type.ts'
import { systemClock } from '../../core/process/clock.ts'
import { type PriceInput, type PriceRow, ProjectPriceInput, ProjectPricesInput, priceKind } from './prices-model.ts'
import { findBackdatedPrice } from './prices-store.ts'

/**
 * Prices of a project in templates. A price in effect is immutable because receipts refer to it: an update adds a
 * succeeding price, and a delete keeps it. A future price is updated and deleted like any resource.
 */

/** Delay until a succeeding price takes effect; must exceed the duration of its write. */
const LEAD_MS = 5000

const successorStart = (now: Date): string => new Date(now.getTime() + LEAD_MS).toISOString()
const isInEffect = ({ effective_from }: PriceRow): boolean => Date.parse(effective_from) <= Date.now()

const schema = inlineSchema(ProjectPriceInput)
const properties = schema.properties as Record<string, JsonObject>
const identity = ['provider', 'model', 'component', 'resource']

const priceBatch = (price: JsonObject): JsonObject => ({ prices: [price] })

export const projectPriceType = resourceType<PriceRow>(priceKind, {
  name: 'project_price',
  create: 'putProjectPrices',
  read: 'getProjectPrice',
  update: null,
  delete: 'deleteProjectPrice',
  without: ['prices'],
  replaced: [...identity, 'effective_from'],
  moving: Object.keys(properties).filter(name => !identity.includes(name) && name !== 'effective_from'),
  translate: {
    properties,
    required: (schema.required as string[]).filter(name => name !== 'effective_from'),
    arguments: ({ effective_from = systemClock.now().toISOString(), ...price }) =>
      priceBatch({ ...price, effective_from }),
    shown: record => record,
  },
  made: ({ prices }) => (prices as JsonObject[])[0],
  async complete({ clock }, db, price) {
    if (price.effective_from !== undefined) return price
    const now = clock.now()
    const { prices } = ProjectPricesInput.parse(priceBatch({ ...price, effective_from: now.toISOString() }))
    const input = { resource: null, quantity: null, ...prices[0], ai_provider_id: null } as PriceInput
    const isPriced = (await findBackdatedPrice(db, [input], now)) !== null
    return { ...price, effective_from: isPriced ? successorStart(now) : now.toISOString() }
  },
  changing(row, changed) {
    const stored = Object.fromEntries(Object.keys(properties).map(name => [name, row[name as keyof PriceRow]]))
    const effective_from = isInEffect(row) ? successorStart(systemClock.now()) : row.effective_from
    return {
      operation: 'putProjectPrices',
      args: { project_id: row.project_id, ...priceBatch({ ...stored, ...changed, effective_from }) },
    }
  },
  deleting: row =>
    isInEffect(row)
      ? null
      : { operation: 'deleteProjectPrice', args: { project_id: row.project_id, price_id: row.id } },
})
