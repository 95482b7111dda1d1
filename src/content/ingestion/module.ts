import { longWork } from '#core/api/long-work.ts'
import { module } from '#core/modules/module.ts'
import { waitingRows } from '#core/work/waiting-rows.ts'
import { endStalledIngestion } from '../documents/ingestion-hooks.ts'
import { ingestionErrors } from './errors.ts'
import { failIfStalled, ingestionWork } from './ingest.ts'
import { ingestionLongWork } from './long-work.ts'
import { ingestionOperations } from './operations.ts'
import { oldestIngestion } from './store.ts'

export default module('ingestion', {
  errors: ingestionErrors,
  operations: ingestionOperations,
  work: [ingestionWork],
  extensions: [
    longWork.with(ingestionLongWork),
    endStalledIngestion.with(failIfStalled),
    waitingRows.with({ concern: 'ingestion', since: oldestIngestion }),
  ],
})
