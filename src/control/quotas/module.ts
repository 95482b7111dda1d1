import { requestCounting } from '#core/api/request-count.ts'
import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { quotaErrors } from './errors.ts'
import { quotaKind } from './model.ts'
import { quotaOperations } from './operations.ts'
import { pruneCounters } from './prune.ts'
import { countQuotaRequest } from './requests.ts'

export default module('quotas', {
  tags: { Quotas: 'Limits on requests, tokens, cost and storage.' },
  errors: quotaErrors,
  kinds: [quotaKind],
  resourceTypes: [resourceType(quotaKind)],
  operations: quotaOperations,
  extensions: [requestCounting.with(countQuotaRequest)],
  policyActions: [
    {
      action: 'quotas:MonitorBreach',
      description: 'Audit entry for a breach of a monitored quota',
      resource_type: 'quota',
    },
  ],
  sweeps: [{ name: 'quota counters', when: '23 3 * * *', run: pruneCounters }],
})
