import { turnContent, turnHolds } from '../../control/retention/content.ts'
import { longWork } from '../../core/api/long-work.ts'
import { module } from '../../core/api/module.ts'
import { leaseHolding } from '../../core/jobs/takeover.ts'
import { approvalDesk } from '../generations/proposals.ts'
import { approvalContent } from './erase.ts'
import { approvalErrors } from './errors.ts'
import { desk } from './file.ts'
import { approvalHandlers, approvalSchedules } from './handlers.ts'
import { turnWork } from './long-work.ts'
import { approvalKind, sealedApprovals } from './model.ts'
import { approvalOperations } from './operations.ts'
import { continuations, isTurnAwaited } from './store.ts'

export default module('approvals', {
  tags: { Approvals: 'Proposed calls that wait for a person.' },
  errors: approvalErrors,
  kinds: [approvalKind],
  operations: approvalOperations,
  handlers: approvalHandlers,
  schedules: approvalSchedules,
  sealedColumns: sealedApprovals,
  extensions: [
    leaseHolding.with(continuations.endLeases),
    approvalDesk.with(desk),
    longWork.with(turnWork),
    turnContent.with(approvalContent),
    turnHolds.with(isTurnAwaited),
  ],
})
