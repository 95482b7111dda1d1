import { longWork } from '../../core/api/long-work.ts'
import { module } from '../../core/api/module.ts'
import { leaseHolding } from '../../core/jobs/takeover.ts'
import { waitingRows } from '../../core/jobs/waiting-rows.ts'
import { stalledIngestion } from '../documents/hooks.ts'
import { ingestionErrors } from './errors.ts'
import { ingestionHandlers, ingestionSchedules } from './handler.ts'
import { ingestionWork } from './long-work.ts'
import { ingestionOperations, withoutStalled } from './operations.ts'
import { ingestions, oldestIngestion } from './store.ts'

export default module('ingestion', {
  errors: ingestionErrors,
  operations: ingestionOperations,
  handlers: ingestionHandlers,
  schedules: ingestionSchedules,
  extensions: [
    longWork.with(ingestionWork),
    leaseHolding.with(ingestions.endLeases),
    stalledIngestion.with(withoutStalled),
    waitingRows.with({ concern: 'ingestion', since: oldestIngestion }),
  ],
})
