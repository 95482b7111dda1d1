import { coreErrors } from './api/errors.ts'
import { sealedResponses } from './api/idempotency.ts'
import { module } from './api/module.ts'
import { auditEvents } from './db/writer.ts'
import { sweepHandler } from './jobs/sweeps.ts'

/** Declarations of the request pipeline and the queues. */
export default module('core', {
  errors: coreErrors,
  eventSources: [auditEvents],
  handlers: [sweepHandler],
  sealedColumns: [sealedResponses],
})
