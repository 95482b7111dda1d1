import { providerScope } from '#control/usage/prices.ts'
import { ProviderPricesInput } from '#control/usage/prices-model.ts'
import { priceOperationsFor } from '#control/usage/prices-operations.ts'
import type { Operation } from '#core/api/operation.ts'
import { aiProviderKind } from './model.ts'

/** Price overrides of a provider, which take precedence over the prices of its project and of the deployment. */
export const providerPriceOperations: Operation[] = priceOperationsFor(aiProviderKind, {
  noun: 'AiProvider',
  words: 'an AI provider',
  path: '/ai-providers/{ai_provider_id}/prices',
  module: 'ai-providers',
  scope: providerScope,
  body: ProviderPricesInput,
  rows: ({ id, project_id, provider }, { prices }) =>
    prices.map(price => ({ ...price, project_id, ai_provider_id: id, provider, resource: null, quantity: null })),
})
