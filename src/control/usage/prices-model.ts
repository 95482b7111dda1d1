import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { timeOrDateInput } from '#core/api/lists.ts'
import { record } from '#core/api/record.ts'
import { sql, voidStatement } from '#core/db/sql.ts'
import { expressionProblem } from '#core/expressions/evaluate.ts'
import { METER_TYPES } from './model.ts'

const name = z.string().trim().min(1).max(255)

const fields = {
  meter_type: z.enum(METER_TYPES).describe('Type of usage. Default `llm_tokens`.'),
  provider: name.describe('Billing provider: the type of an AI provider, or `platform`'),
  model: name.describe('Model, or unit for usage of the platform'),
  component: name.describe('Component of the usage, such as `input_tokens`'),
  unit: name.describe('Unit of the component; the price applies only to usage in this unit'),
  unit_price: z.number().min(0).max(1e9).describe('Price per unit in USD'),
  tier: name
    .nullable()
    .describe('Service tier of the answer to which the price applies. Null for every tier without a separate price.'),
  above_tokens: z
    .int()
    .min(1)
    .max(1e9)
    .nullable()
    .describe(
      'Number of prompt tokens, cached ones included, above which the price applies to the whole model call. Null for every call without such a price.',
    ),
  effective_from: z.string().describe('Time from which the price applies; the latest price in effect is used'),
  resource: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .describe('SRN of a tool or agent of the project; the price adds a component to its calls or turns'),
  quantity: z
    .unknown()
    .describe(
      'JSON Logic expression on `{ input, output }` of the call or turn that returns the quantity. Null means 1.',
    ),
}

export const Price = record(
  'Price',
  {
    project_id: z.string().nullable().describe('ID of the project. Null for global prices.'),
    ai_provider_id: z.string().nullable().describe('ID of the AI provider for which the price is an override'),
    ...fields,
    effective_until: z.string().nullable().describe('Time at which the price was ended. Null unless it was.'),
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

const MAX_PRICES = 500

const { meter_type, provider, model, component, unit, unit_price, tier, above_tokens } = fields
const base = {
  meter_type: meter_type.default('llm_tokens'),
  model,
  component,
  unit,
  unit_price,
  tier: tier.optional(),
  above_tokens: above_tokens.optional(),
  effective_from: timeOrDateInput
    .describe(fields.effective_from.description as string)
    .meta({ example: '2026-04-01T00:00:00Z' }),
}

const priceBatch = <S extends z.ZodType>(id: string, price: S) =>
  z
    .strictObject({
      prices: z
        .array(price)
        .min(1)
        .max(MAX_PRICES)
        .describe(`Prices to add, at most ${MAX_PRICES}; written all or none`),
    })
    .meta({ id })

export const PriceBookInput = priceBatch(
  'PriceBookInput',
  z
    .strictObject({
      ...base,
      provider: provider
        .optional()
        .describe('Billing provider; for an override, defaults to the type of its AI provider')
        .meta({ example: 'openai' }),
      ai_provider_id: z
        .string()
        .nullable()
        .optional()
        .describe('ID of the AI provider for which the price is an override'),
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
  .superRefine(({ resource, quantity, tier, above_tokens }, context) => {
    for (const [name, value] of Object.entries({ tier, above_tokens }))
      if (value != null && resource != null)
        context.addIssue({ code: 'custom', path: [name], message: 'is not allowed with resource' })
    if (quantity == null) return
    const problem = resource == null ? 'is allowed only with resource' : expressionProblem(quantity)
    if (problem) context.addIssue({ code: 'custom', path: ['quantity'], message: problem })
  })

export const ProjectPricesInput = priceBatch('ProjectPricesInput', ProjectPriceInput)

export const ProviderPricesInput = priceBatch('AiProviderPricesInput', z.strictObject(base))

export const Prices = z.object({ prices: z.array(Price).describe('Written prices') }).meta({ id: 'Prices' })

/** A price to write. */
export type PriceInput = {
  ai_provider_id: string | null
  project_id: string | null
  meter_type: (typeof METER_TYPES)[number]
  provider: string
  model: string
  component: string
  unit: string
  unit_price: number
  tier?: string | null
  above_tokens?: number | null
  effective_from: string
  resource: string | null
  quantity: unknown
}
