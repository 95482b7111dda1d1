import { turnContent, turnHolds } from '#control/retention/erasure.ts'
import { longWork } from '#core/api/long-work.ts'
import { module } from '#core/modules/module.ts'
import { approvalDesk } from '../generations/tools/approval-desk.ts'
import { approvalContent } from './erase.ts'
import { approvalErrors } from './errors.ts'
import { followUpWork } from './follow-up.ts'
import { guardrailDesk } from './guardrail-desk.ts'
import { approvalHandlers, approvalSchedules } from './handlers.ts'
import { turnWork } from './long-work.ts'
import { approvalKind, sealedApprovals } from './model.ts'
import { approvalOperations } from './operations.ts'
import { isTurnAwaited } from './store.ts'

export default module('approvals', {
  tags: { Approvals: 'Proposed calls that await a decision by a person.' },
  errors: approvalErrors,
  kinds: [approvalKind],
  operations: approvalOperations,
  work: [followUpWork],
  handlers: approvalHandlers,
  schedules: approvalSchedules,
  sealedColumns: sealedApprovals,
  extensions: [
    approvalDesk.with(guardrailDesk),
    longWork.with(turnWork),
    turnContent.with(approvalContent),
    turnHolds.with(isTurnAwaited),
  ],
})
