import { z } from 'zod'
import { etagMatches, etagOf } from '#core/api/etag.ts'
import { equalsFilter, filterConditions, filterSchema } from '#core/api/filters.ts'
import { isIdOf, type Kind, type KindRow } from '#core/api/kind.ts'
import { booleanQuery, pageOf, pageResult } from '#core/api/lists.ts'
import { type Context, itemOperation, type Operation, operation, result } from '#core/api/operation.ts'
import { type ErrorCode, raise, raiseInvalidValue } from '#core/base/errors.ts'
import { allOf, type Fragment, sql } from '#core/db/sql.ts'
import { ownRows } from '#core/services/copies.ts'
import { projectKind } from '#identity/projects/model.ts'
import { globalScope, lockPricedProviders, projectScope, putPrices, removePrice } from './prices.ts'
import {
  Price,
  PriceBookInput,
  type PriceInput,
  type PriceRow,
  Prices,
  ProjectPricesInput,
  priceKind,
} from './prices-model.ts'
import { findPrice } from './prices-store.ts'

const tag = 'Prices'

const filters = { provider: equalsFilter('provider'), model: equalsFilter('model') }
const PriceQuery = filterSchema(filters)

/** Returns a page of the prices of a scope, newest first (indexes prices_identity, prices_project, prices_provider). */
const listPricePage = (context: Pick<Context<any>, 'db' | 'page' | 'query'>, scope: Fragment) =>
  pageResult<PriceRow>(context, {
    columns: priceKind.columns,
    from: sql.fragment`prices t`,
    rows: scope,
    filters: filterConditions(filters, context.query),
    time: sql.fragment`t.created_at`,
    order: sql.fragment`t.created_at desc, t.id desc`,
    key: sql.fragment`t.id`,
    present: priceKind.present,
  })

const PUT_DESCRIPTION =
  'Writes all prices or none. Usage is priced once, when it is written, at the latest price in effect. The first price of a component may start in the past; once a price is in effect, further prices must start in the future. A future price is replaced by another one with the same start.'

const DELETE_DESCRIPTION =
  'Past and current prices cannot be deleted because receipts refer to them. With `end`, the price of the item in this scope that is in effect ends now: prices of a broader scope apply to later usage.'

const EndQuery = z.object({
  end: booleanQuery.optional().describe('Whether to end the current price instead of failing with PRICE_IN_EFFECT'),
})

const presentPrices = (rows: readonly PriceRow[]) => ({ prices: rows.map(priceKind.present) })
const putAndPresent = async (
  { tx, services }: Pick<Context, 'tx' | 'services'>,
  rows: readonly PriceInput[],
): Promise<z.output<typeof Prices>> => presentPrices(await putPrices(tx, services, rows)) as never

/** Returns the list, put and delete operations for the prices of a kind. `rows` converts a body to prices. */
export function priceOperationsFor<Row extends KindRow, B extends z.ZodType>(
  kind: Kind<Row, any>,
  options: {
    noun: string
    words: string
    path: string
    module: string
    description?: string
    raises?: ErrorCode[]
    scope: (id: string) => Fragment
    body: B
    rows: (row: Row, body: z.output<B>) => PriceInput[]
  },
): Operation[] {
  const { noun, words, path, module, description = PUT_DESCRIPTION, raises = [], scope, body, rows } = options
  return [
    itemOperation(kind, {
      id: `list${noun}Prices`,
      method: 'get',
      path,
      summary: `List the prices of ${words}`,
      description: 'Past, current and future prices.',
      tag,
      action: `${module}:Get${noun}Prices`,
      paged: true,
      query: PriceQuery,
      answers: { 200: pageOf(Price) },
      run: context => listPricePage(context, scope(context.resource.id)),
    }),
    itemOperation(kind, {
      id: `put${noun}Prices`,
      method: 'put',
      path,
      summary: `Add prices of ${words}`,
      description,
      tag,
      action: `${module}:Manage${noun}Prices`,
      body,
      answers: { 200: Prices },
      raises,
      run: context => putAndPresent(context, rows(context.resource, context.body as z.output<B>)),
    }),
    itemOperation(kind, {
      id: `delete${noun}Price`,
      method: 'delete',
      path: `${path}/{price_id}`,
      summary: `Delete a future price of ${words}`,
      description: DELETE_DESCRIPTION,
      tag,
      action: `${module}:Manage${noun}Prices`,
      query: EndQuery,
      answers: { 204: null },
      raises: ['RESOURCE_NOT_FOUND', 'PRICE_IN_EFFECT'],
      run: context => removePrice(context, context.params.price_id, scope(context.resource.id)),
    }),
  ]
}

export const priceOperations: Operation[] = [
  operation({
    id: 'listPrices',
    method: 'get',
    path: '/usage/prices',
    summary: 'List global prices',
    description: 'Prices that apply to all projects. Prices of a project or an AI provider take precedence.',
    tag,
    action: 'usage:GetPriceBook',
    gate: 'any',
    byDefinitions: true,
    about: priceKind,
    paged: true,
    query: PriceQuery,
    answers: { 200: pageOf(Price) },
    // A list of all cells has these prices once; a credential of a project reads the copies of its cell.
    run: context =>
      listPricePage(
        context,
        allOf([globalScope, context.caller.project_id === null ? ownRows(context.services) : null]),
      ),
  }),
  operation({
    id: 'putPrices',
    method: 'put',
    path: '/usage/prices',
    summary: 'Add global prices or AI provider overrides',
    description: PUT_DESCRIPTION,
    tag,
    action: 'usage:ManagePriceBook',
    gate: 'admin',
    about: priceKind,
    body: PriceBookInput,
    answers: { 200: Prices },
    raises: ['AI_PROVIDER_NOT_FOUND'],
    async run(context) {
      const { prices } = context.body
      const at = prices.findIndex(({ ai_provider_id }) => !ai_provider_id)
      if (context.services.cell?.number && at >= 0)
        raiseInvalidValue(`prices.${at}.ai_provider_id`, 'is required: global prices are set by separate requests')
      const providers = await lockPricedProviders(
        context.tx,
        prices.flatMap(({ ai_provider_id }) => ai_provider_id ?? []),
      )
      const rows = prices.map(({ ai_provider_id = null, ...price }): PriceInput => {
        const aiProvider = ai_provider_id === null ? null : providers.get(ai_provider_id)
        return {
          ...price,
          ai_provider_id,
          project_id: aiProvider?.project_id ?? null,
          provider: aiProvider?.provider ?? (price.provider as string),
          resource: null,
          quantity: null,
        }
      })
      return putAndPresent(context, rows)
    },
  }),
  operation({
    id: 'deletePrice',
    method: 'delete',
    path: '/usage/prices/{price_id}',
    summary: 'Delete a future global price',
    description: DELETE_DESCRIPTION,
    tag,
    action: 'usage:ManagePriceBook',
    gate: 'admin',
    about: priceKind,
    query: EndQuery,
    answers: { 204: null },
    raises: ['RESOURCE_NOT_FOUND', 'PRICE_IN_EFFECT'],
    run: context => removePrice(context, context.params.price_id, globalScope),
  }),
  itemOperation(projectKind, {
    id: 'getProjectPrice',
    method: 'get',
    path: '/projects/{project_id}/prices/{price_id}',
    summary: 'Get a price of a project',
    description: 'A past, current or future price.',
    tag,
    action: 'projects:GetProjectPrices',
    answers: { 200: Price },
    raises: ['RESOURCE_NOT_FOUND'],
    async run({ db, params: { price_id: id }, resource, request }) {
      const row = isIdOf(priceKind, id) ? await findPrice(db, id, projectScope(resource.id)) : null
      const price = priceKind.present(row ?? raise('RESOURCE_NOT_FOUND', { meta: { id } }))
      const tag = etagOf(JSON.stringify(price))
      const ifNoneMatch = request.headers['if-none-match']
      return ifNoneMatch !== undefined && etagMatches(ifNoneMatch, tag)
        ? result(304, undefined, { ETag: tag })
        : result(200, price, { ETag: tag })
    },
  }),
  ...priceOperationsFor(projectKind, {
    noun: 'Project',
    words: 'a project',
    path: '/projects/{project_id}/prices',
    module: 'projects',
    description: `${PUT_DESCRIPTION} A price with a \`resource\` adds a component to the calls of a tool or the turns of an agent.`,
    raises: ['TOOL_NOT_FOUND', 'AGENT_NOT_FOUND'],
    scope: projectScope,
    body: ProjectPricesInput,
    rows: ({ id }, { prices }) =>
      prices.map(({ resource = null, quantity = null, ...price }) => ({
        ...price,
        project_id: id,
        ai_provider_id: null,
        resource,
        quantity,
      })),
  }),
]
