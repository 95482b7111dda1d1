import { requestCounting } from '#core/api/request-count.ts'
import { module } from '#core/modules/module.ts'
import { usageErrors } from './errors.ts'
import { foldHandler, foldSchedule } from './folds.ts'
import { quantityHandlers } from './late-quantities.ts'
import { usageDropped } from './meter.ts'
import { costTotal, tokensTotal } from './metrics.ts'
import { usageKind } from './model.ts'
import { usageOperations } from './operations.ts'
import { priceKind } from './prices-model.ts'
import { priceOperations } from './prices-operations.ts'
import { projectPriceType } from './prices-resource-type.ts'
import { reportOperations } from './reports.ts'
import { meterRequest } from './requests.ts'
import { rollUpUsage } from './roll-up.ts'
import { pruneSums } from './sums.ts'
import { thresholdHandlers, thresholdOperations, thresholdSchedules } from './thresholds.ts'
import { thresholdKind } from './thresholds-model.ts'

export default module('usage', {
  tags: {
    Usage: 'Usage and its cost: events, reports, receipts and thresholds.',
    Prices: 'Unit prices of usage, for all projects, one project or one AI provider.',
  },
  errors: usageErrors,
  kinds: [usageKind, priceKind, thresholdKind],
  resourceTypes: [projectPriceType],
  operations: [...usageOperations, ...reportOperations, ...priceOperations, ...thresholdOperations],
  handlers: [...thresholdHandlers, ...quantityHandlers, foldHandler],
  schedules: [...thresholdSchedules, foldSchedule],
  extensions: [requestCounting.with(meterRequest)],
  metrics: [usageDropped, tokensTotal, costTotal],
  sweeps: [
    { name: 'usage sums', when: '26 3 * * *', run: pruneSums },
    { name: 'usage roll-up', when: '3 4 * * *', run: rollUpUsage },
  ],
})
