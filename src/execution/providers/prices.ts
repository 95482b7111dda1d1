import { providerScope, removePrice } from '../../control/usage/prices.ts'
import { Price, Prices, ProviderPricesInput } from '../../control/usage/prices-model.ts'
import { PriceQuery, pricePage, putAndShow, WRITING } from '../../control/usage/prices-operations.ts'
import { pageOf } from '../../core/api/lists.ts'
import { itemOperation, type Operation } from '../../core/api/operation.ts'
import { aiProviderKind } from './model.ts'

const tag = 'Prices'

/** Overrides: what a provider bills where that differs from the prices of its project and of the deployment. */
export const providerPriceOperations: Operation[] = [
  itemOperation(aiProviderKind, {
    id: 'listAiProviderPrices',
    method: 'get',
    path: '/ai-providers/{ai_provider_id}/prices',
    summary: 'List the prices of an AI provider',
    tag,
    action: 'ai-providers:GetAiProviderPrices',
    paged: true,
    query: PriceQuery,
    answers: { 200: pageOf(Price) },
    run: context => pricePage(context, providerScope(context.resource.id)),
  }),
  itemOperation(aiProviderKind, {
    id: 'putAiProviderPrices',
    method: 'put',
    path: '/ai-providers/{ai_provider_id}/prices',
    summary: 'Add prices of an AI provider',
    description: WRITING,
    tag,
    action: 'ai-providers:ManageAiProviderPrices',
    body: ProviderPricesInput,
    answers: { 200: Prices },
    run: context => {
      const { id, project_id, provider } = context.resource
      return putAndShow(
        context,
        context.body.prices.map(price => ({
          ...price,
          project_id,
          ai_provider_id: id,
          provider,
          resource: null,
          quantity: null,
        })),
      )
    },
  }),
  itemOperation(aiProviderKind, {
    id: 'deleteAiProviderPrice',
    method: 'delete',
    path: '/ai-providers/{ai_provider_id}/prices/{price_id}',
    summary: 'Delete a price of an AI provider that is to come',
    tag,
    action: 'ai-providers:ManageAiProviderPrices',
    answers: { 204: null },
    raises: ['RESOURCE_NOT_FOUND', 'PRICE_IN_EFFECT'],
    run: ({ tx, services, params, resource }) => removePrice(tx, services, params.price_id, providerScope(resource.id)),
  }),
]
