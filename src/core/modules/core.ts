import { sealedResponses } from '../api/idempotency.ts'
import { coreErrors } from '../base/errors.ts'
import { sealedCellUrls } from '../services/cell-directory.ts'
import { sealedMoveUrls } from '../services/cell-moves.ts'
import { sweepHandler } from '../work/sweeps.ts'
import { auditEvents } from '../writes/writer.ts'
import { module } from './module.ts'

/** Declarations of the request pipeline and the queues. */
export default module('core', {
  errors: coreErrors,
  eventSources: [auditEvents],
  handlers: [sweepHandler],
  sealedColumns: [sealedResponses, sealedCellUrls, sealedMoveUrls],
})
