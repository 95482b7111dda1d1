import { longWork } from '../../core/api/long-work.ts'
import { module } from '../../core/api/module.ts'
import { leaseHolding } from '../../core/jobs/takeover.ts'
import { waitingRows } from '../../core/jobs/waiting-rows.ts'
import { endStalledIngestion } from '../documents/ingestion-hooks.ts'
import { ingestionErrors } from './errors.ts'
import { ingestionHandlers, ingestionSchedules } from './handler.ts'
import { ingestionLongWork } from './long-work.ts'
import { failIfStalled, ingestionOperations } from './operations.ts'
import { ingestionWork, oldestIngestion } from './store.ts'

export default module('ingestion', {
  errors: ingestionErrors,
  operations: ingestionOperations,
  handlers: ingestionHandlers,
  schedules: ingestionSchedules,
  extensions: [
    longWork.with(ingestionLongWork),
    leaseHolding.with(ingestionWork.endLeases),
    endStalledIngestion.with(failIfStalled),
    waitingRows.with({ concern: 'ingestion', since: oldestIngestion }),
  ],
})
