import type { z } from 'zod'
import { type ErrorCode, raise } from '../../core/api/errors.ts'
import { etagMatches, etagOf } from '../../core/api/etag.ts'
import { equalsFilter, filterConditions, filterSchema } from '../../core/api/filters.ts'
import { isIdOf, type Kind, type KindRow } from '../../core/api/kind.ts'
import { pageOf, pageResult } from '../../core/api/lists.ts'
import { type Context, itemOperation, type Operation, operation, result } from '../../core/api/operation.ts'
import { type Fragment, sql } from '../../core/db/sql.ts'
import { projectKind } from '../../identity/projects/model.ts'
import { globalScope, pricedProviders, projectScope, putPrices, removePrice } from './prices.ts'
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

/** A page of the prices of a scope, newest first (indexes prices_identity, prices_project, prices_provider). */
const pricePage = (context: Pick<Context<any>, 'db' | 'page' | 'query'>, scope: Fragment) =>
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

const WRITING =
  'All prices or none. The latest that has come into force prices a use when it is written, and never again. A first price for something may be dated back; once one is in force others begin in the future. One that is to come is replaced by another for the same time.'

const shown = (rows: readonly PriceRow[]) => ({ prices: rows.map(priceKind.present) })
const putAndShow = async (
  { tx, services }: Pick<Context, 'tx' | 'services'>,
  rows: readonly PriceInput[],
): Promise<z.output<typeof Prices>> => shown(await putPrices(tx, services, rows)) as never

/** List, put and delete of the prices that belong to rows of a kind. `rows` makes them of a body. */
export function priceOperationsFor<Row extends KindRow, B extends z.ZodType>(
  kind: Kind<Row, any>,
  at: {
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
  const { noun, words, path, module, description = WRITING, raises = [], scope, body, rows } = at
  return [
    itemOperation(kind, {
      id: `list${noun}Prices`,
      method: 'get',
      path,
      summary: `List the prices of ${words}`,
      description: 'Those that were in effect, are, and are to come.',
      tag,
      action: `${module}:Get${noun}Prices`,
      paged: true,
      query: PriceQuery,
      answers: { 200: pageOf(Price) },
      run: context => pricePage(context, scope(context.resource.id)),
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
      run: context => putAndShow(context, rows(context.resource, context.body as z.output<B>)),
    }),
    itemOperation(kind, {
      id: `delete${noun}Price`,
      method: 'delete',
      path: `${path}/{price_id}`,
      summary: `Delete a price of ${words} that is to come`,
      description: 'Prices that are in effect, or were, stay: receipts name them.',
      tag,
      action: `${module}:Manage${noun}Prices`,
      answers: { 204: null },
      raises: ['RESOURCE_NOT_FOUND', 'PRICE_IN_EFFECT'],
      run: ({ tx, services, params, resource }) => removePrice(tx, services, params.price_id, scope(resource.id)),
    }),
  ]
}

export const priceOperations: Operation[] = [
  operation({
    id: 'listPrices',
    method: 'get',
    path: '/usage/prices',
    summary: 'List the prices of all projects',
    description: 'Those of a project or a provider take precedence over these for what they cover.',
    tag,
    action: 'usage:GetPriceBook',
    gate: 'any',
    about: priceKind,
    paged: true,
    query: PriceQuery,
    answers: { 200: pageOf(Price) },
    run: context => pricePage(context, globalScope),
  }),
  operation({
    id: 'putPrices',
    method: 'put',
    path: '/usage/prices',
    summary: 'Add prices for all projects, or overrides for AI providers',
    description: WRITING,
    tag,
    action: 'usage:ManagePriceBook',
    gate: 'admin',
    about: priceKind,
    body: PriceBookInput,
    answers: { 200: Prices },
    raises: ['AI_PROVIDER_NOT_FOUND'],
    async run(context) {
      const { prices } = context.body
      const providers = await pricedProviders(
        context.tx,
        prices.flatMap(({ ai_provider_id }) => ai_provider_id ?? []),
      )
      const rows = prices.map(({ ai_provider_id = null, ...price }): PriceInput => {
        const named = ai_provider_id === null ? null : providers.get(ai_provider_id)
        return {
          ...price,
          ai_provider_id,
          project_id: named?.project_id ?? null,
          provider: named?.provider ?? (price.provider as string),
          resource: null,
          quantity: null,
        }
      })
      return putAndShow(context, rows)
    },
  }),
  operation({
    id: 'deletePrice',
    method: 'delete',
    path: '/usage/prices/{price_id}',
    summary: 'Delete a price of all projects that is to come',
    description: 'Prices that are in effect, or were, stay: receipts name them.',
    tag,
    action: 'usage:ManagePriceBook',
    gate: 'admin',
    about: priceKind,
    answers: { 204: null },
    raises: ['RESOURCE_NOT_FOUND', 'PRICE_IN_EFFECT'],
    run: ({ tx, services, params }) => removePrice(tx, services, params.price_id, globalScope),
  }),
  itemOperation(projectKind, {
    id: 'getProjectPrice',
    method: 'get',
    path: '/projects/{project_id}/prices/{price_id}',
    summary: 'Read a price of a project',
    description: 'One that was in effect, is, or is to come.',
    tag,
    action: 'projects:GetProjectPrices',
    answers: { 200: Price },
    raises: ['RESOURCE_NOT_FOUND'],
    async run({ db, params: { price_id: id }, resource, request }) {
      const row = isIdOf(priceKind, id) ? await findPrice(db, id, projectScope(resource.id)) : null
      const price = priceKind.present(row ?? raise('RESOURCE_NOT_FOUND', { meta: { id } }))
      const tag = etagOf(JSON.stringify(price))
      const known = request.headers['if-none-match']
      return known !== undefined && etagMatches(known, tag)
        ? result(304, undefined, { ETag: tag })
        : result(200, price, { ETag: tag })
    },
  }),
  ...priceOperationsFor(projectKind, {
    noun: 'Project',
    words: 'a project',
    path: '/projects/{project_id}/prices',
    module: 'projects',
    description: `${WRITING} One with a \`resource\` adds a component to the calls of a tool or the turns of an agent.`,
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
