import { keptAnswers } from './api/idempotency.ts'
import { module } from './api/module.ts'
import { sweepHandler } from './jobs/sweeps.ts'

/** What the pipeline and the queues themselves bring. */
export default module('core', { handlers: [sweepHandler], sealedColumns: [keptAnswers] })
