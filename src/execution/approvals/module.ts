import { turnContent, turnHolds } from '../../control/retention/erasure.ts'
import { longWork } from '../../core/api/long-work.ts'
import { module } from '../../core/api/module.ts'
import { leaseHolding } from '../../core/jobs/takeover.ts'
import { approvalDesk } from '../generations/tools/approval-desk.ts'
import { approvalContent } from './erase.ts'
import { approvalErrors } from './errors.ts'
import { guardrailDesk } from './guardrail-desk.ts'
import { approvalHandlers, approvalSchedules } from './handlers.ts'
import { turnWork } from './long-work.ts'
import { approvalKind, sealedApprovals } from './model.ts'
import { approvalOperations } from './operations.ts'
import { followUpWork, isTurnAwaited } from './store.ts'

export default module('approvals', {
  tags: { Approvals: 'Proposed calls that await a decision by a person.' },
  errors: approvalErrors,
  kinds: [approvalKind],
  operations: approvalOperations,
  handlers: approvalHandlers,
  schedules: approvalSchedules,
  sealedColumns: sealedApprovals,
  extensions: [
    leaseHolding.with(followUpWork.endLeases),
    approvalDesk.with(guardrailDesk),
    longWork.with(turnWork),
    turnContent.with(approvalContent),
    turnHolds.with(isTurnAwaited),
  ],
})
