import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { cloneables } from '#identity/projects/clone.ts'
import { providerCloning } from './clone.ts'
import { providerErrors } from './errors.ts'
import { genAiMetrics, imageConversions, modelCallDuration, modelCalls, modelFirstPiece } from './metrics.ts'
import { aiProviderKind, providerCredentials } from './model.ts'
import { aiProviderOperations } from './operations.ts'
import { providerPriceOperations } from './prices.ts'

export default module('providers', {
  tags: { 'AI providers': 'Accounts at model vendors.' },
  errors: providerErrors,
  kinds: [aiProviderKind],
  resourceTypes: [
    resourceType(aiProviderKind, {
      writeOnly: ['config'],
      hides: ({ sealed_credentials }) => (sealed_credentials === null ? [] : ['config']),
    }),
  ],
  operations: [...aiProviderOperations, ...providerPriceOperations],
  sealedColumns: [providerCredentials],
  metrics: [modelCalls, modelCallDuration, modelFirstPiece, ...genAiMetrics, imageConversions],
  extensions: [cloneables.with(providerCloning)],
})
