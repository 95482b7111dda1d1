import { inlineSchema, type JsonObject } from '#core/api/flatten.ts'
import { resourceType } from '#core/api/resource-type.ts'
import { systemClock } from '#core/base/clock.ts'
import { type PriceInput, type PriceRow, ProjectPriceInput, ProjectPricesInput, priceKind } from './prices-model.ts'
import { findBackdatedPrice, findPriceEnd } from './prices-store.ts'

/**
 * Prices of a project in templates. A price in effect is immutable because receipts refer to it: an update adds a
 * succeeding price, and a delete ends it. A future price is updated and deleted like any resource.
 */

/** Delay until a succeeding price takes effect; must exceed the duration of its write. */
const LEAD_MS = 5000

const successorStart = (now: Date): string => new Date(now.getTime() + LEAD_MS).toISOString()
const isInEffect = ({ effective_from }: PriceRow): boolean => Date.parse(effective_from) <= systemClock.now().getTime()
const isEnded = ({ effective_until }: PriceRow): boolean => effective_until !== null

const schema = inlineSchema(ProjectPriceInput)
const properties = schema.properties as Record<string, JsonObject>
const identity = ['provider', 'model', 'component', 'resource', 'tier', 'above_tokens']

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
  async complete({ clock }, db, project_id, price) {
    const now = clock.now()
    const { prices } = ProjectPricesInput.parse(priceBatch({ effective_from: now.toISOString(), ...price }))
    const input = { resource: null, quantity: null, ...prices[0], ai_provider_id: null, project_id } as PriceInput
    if (price.effective_from !== undefined) {
      // A price that a teardown has ended keeps its time: the next one starts at its end.
      const ended = await findPriceEnd(db, input)
      return ended && Date.parse(input.effective_from) < Date.parse(ended) ? { ...price, effective_from: ended } : price
    }
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
  // Also ends the predecessor of a price that has not started yet.
  deleting: row => ({
    operation: 'deleteProjectPrice',
    args: { project_id: row.project_id, price_id: row.id, end: true },
  }),
  find: async (db, id) => {
    const row = await priceKind.find(db, id)
    return row && !isEnded(row) ? row : null
  },
  exported: row => !isEnded(row),
})
