import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { timeOrDateInput } from '../../core/api/lists.ts'
import { record } from '../../core/api/record.ts'
import { sql, voidStatement } from '../../core/db/sql.ts'
import { expressionProblem } from '../../core/expressions/evaluate.ts'
import { METER_TYPES } from './model.ts'

const name = z.string().trim().min(1).max(255)

const fields = {
  meter_type: z.enum(METER_TYPES).describe('What is used; default `llm_tokens`'),
  provider: name.describe('Who bills it: the type of an AI provider, or `platform`'),
  model: name.describe('The model or, of the platform, the unit'),
  component: name.describe('Part of the use, such as `input_tokens`'),
  unit: name.describe('Unit of the part; a price in another unit does not apply'),
  unit_price: z.number().min(0).max(1e9).describe('Price of a unit in USD'),
  effective_from: z.string().describe('When it comes into force; the latest that has prices a use'),
  resource: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .describe('SRN of a tool or agent of the project whose calls or turns the price adds a component to'),
  quantity: z
    .unknown()
    .describe(
      'JSON Logic over `{ input, output }` of the call or turn that gives the quantity of a resource; null is 1',
    ),
}

export const Price = record(
  'Price',
  {
    project_id: z.string().nullable().describe('Null for a price of all projects'),
    ai_provider_id: z.string().nullable().describe('The AI provider that an override is for'),
    ...fields,
  },
  { project: false, updated: false },
)

export const priceKind = kind({
  name: 'price',
  prefix: 'price',
  table: 'prices',
  references: [
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
    { kind: 'ai_provider', column: 'ai_provider_id', on_delete: 'force', counted: 'price_overrides' },
  ],
  record: Price,
  removeAll: (tx, ids) =>
    tx.query(voidStatement`delete from prices where id = any(${sql.array([...ids], 'text')})`) as never,
})
export type PriceRow = z.output<typeof priceKind.row>

/** Most prices of one request. */
const MAX_PRICES = 500

const { meter_type, provider, model, component, unit, unit_price } = fields
const base = {
  meter_type: meter_type.default('llm_tokens'),
  model,
  component,
  unit,
  unit_price,
  effective_from: timeOrDateInput
    .describe(fields.effective_from.description as string)
    .meta({ example: '2026-04-01T00:00:00Z' }),
}

const batchOf = <S extends z.ZodType>(id: string, price: S) =>
  z
    .strictObject({
      prices: z
        .array(price)
        .min(1)
        .max(MAX_PRICES)
        .describe(`Prices to add, at most ${MAX_PRICES}; all of them or none`),
    })
    .meta({ id })

export const PriceBookInput = batchOf(
  'PriceBookInput',
  z
    .strictObject({
      ...base,
      provider: provider
        .optional()
        .describe('Who bills it; of an override that of its AI provider')
        .meta({ example: 'openai' }),
      ai_provider_id: z.string().nullable().optional().describe('AI provider that the price is an override for'),
    })
    .refine(price => price.provider !== undefined || price.ai_provider_id != null, {
      path: ['provider'],
      message: 'is required without ai_provider_id',
    }),
)

export const ProjectPriceInput = z
  .strictObject({
    ...base,
    provider,
    resource: fields.resource.optional(),
    quantity: z
      .record(z.string(), z.unknown())
      .nullable()
      .optional()
      .describe(fields.quantity.description as string),
  })
  .superRefine(({ resource, quantity }, context) => {
    if (quantity == null) return
    const problem = resource == null ? 'belongs to prices of a resource' : expressionProblem(quantity)
    if (problem) context.addIssue({ code: 'custom', path: ['quantity'], message: problem })
  })

export const ProjectPricesInput = batchOf('ProjectPricesInput', ProjectPriceInput)

export const ProviderPricesInput = batchOf('AiProviderPricesInput', z.strictObject(base))

export const Prices = z.object({ prices: z.array(Price).describe('Current prices') }).meta({ id: 'Prices' })

/** A price as it is to be written. */
export type PriceInput = {
  ai_provider_id: string | null
  project_id: string | null
  meter_type: (typeof METER_TYPES)[number]
  provider: string
  model: string
  component: string
  unit: string
  unit_price: number
  effective_from: string
  resource: string | null
  quantity: unknown
}
