import type { z } from 'zod'
import { equals, filterConditions, filterSchema } from '../../core/api/filters.ts'
import { page, pageOf } from '../../core/api/lists.ts'
import { type Context, itemOperation, type Operation, operation } from '../../core/api/operation.ts'
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

const tag = 'Prices'

const filters = { provider: equals('provider'), model: equals('model') }
export const PriceQuery = filterSchema(filters)

/** A page of the prices of a scope, newest first (indexes prices_identity, prices_project, prices_provider). */
export const pricePage = (context: Pick<Context<any>, 'db' | 'page' | 'query'>, scope: Fragment) =>
  page<PriceRow>(context, {
    columns: priceKind.columns,
    from: sql.fragment`prices t`,
    rows: scope,
    filters: filterConditions(filters, context.query),
    time: sql.fragment`t.created_at`,
    order: sql.fragment`t.created_at desc, t.id desc`,
    key: sql.fragment`t.id`,
    present: priceKind.present,
  })

export const WRITING =
  'All prices or none. The latest that has come into force prices a use when it is written, and never again. A first price for something may be dated back; once one is in force others begin in the future. One that is to come is replaced by another for the same time.'

const shown = (rows: readonly PriceRow[]) => ({ prices: rows.map(priceKind.present) })
export const putAndShow = async (
  { tx, services }: Pick<Context, 'tx' | 'services'>,
  rows: readonly PriceInput[],
): Promise<z.output<typeof Prices>> => shown(await putPrices(tx, services, rows)) as never

export const priceOperations: Operation[] = [
  operation({
    id: 'listPrices',
    method: 'get',
    path: '/usage/prices',
    summary: 'List the prices of all projects',
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
    tag,
    action: 'usage:ManagePriceBook',
    gate: 'admin',
    about: priceKind,
    answers: { 204: null },
    raises: ['RESOURCE_NOT_FOUND', 'PRICE_IN_EFFECT'],
    run: ({ tx, services, params }) => removePrice(tx, services, params.price_id, globalScope),
  }),
  itemOperation(projectKind, {
    id: 'listProjectPrices',
    method: 'get',
    path: '/projects/{project_id}/prices',
    summary: 'List the prices of a project',
    tag,
    action: 'projects:GetProjectPrices',
    paged: true,
    query: PriceQuery,
    answers: { 200: pageOf(Price) },
    run: context => pricePage(context, projectScope(context.resource.id)),
  }),
  itemOperation(projectKind, {
    id: 'putProjectPrices',
    method: 'put',
    path: '/projects/{project_id}/prices',
    summary: 'Add prices of a project',
    description: `${WRITING} One with a \`resource\` adds a component to the calls of a tool or the turns of an agent.`,
    tag,
    action: 'projects:ManageProjectPrices',
    body: ProjectPricesInput,
    answers: { 200: Prices },
    raises: ['TOOL_NOT_FOUND', 'AGENT_NOT_FOUND'],
    run: context =>
      putAndShow(
        context,
        context.body.prices.map(({ resource = null, quantity = null, ...price }) => ({
          ...price,
          project_id: context.resource.id,
          ai_provider_id: null,
          resource,
          quantity,
        })),
      ),
  }),
  itemOperation(projectKind, {
    id: 'deleteProjectPrice',
    method: 'delete',
    path: '/projects/{project_id}/prices/{price_id}',
    summary: 'Delete a price of a project that is to come',
    tag,
    action: 'projects:ManageProjectPrices',
    answers: { 204: null },
    raises: ['RESOURCE_NOT_FOUND', 'PRICE_IN_EFFECT'],
    run: ({ tx, services, params, resource }) => removePrice(tx, services, params.price_id, projectScope(resource.id)),
  }),
]
