import { turnContent, turnHolds } from '#control/retention/erasure.ts'
import { orchestrationRuns } from '#control/usage/filters.ts'
import { onDelete } from '#core/api/dependents.ts'
import { longWork } from '#core/api/long-work.ts'
import { sql } from '#core/db/sql.ts'
import { module } from '#core/modules/module.ts'
import { leaseHolding } from '#core/work/takeover.ts'
import { waitingRows } from '#core/work/waiting-rows.ts'
import { approvalWaiters } from '#execution/approvals/model.ts'
import { decisionWaiters } from '#execution/deciders/settle.ts'
import { turnOwners } from '#execution/generations/loop/turn-owner.ts'
import { pauseHooks, resumeHooks } from '#identity/projects/pause.ts'
import { orchestrationKind } from '../definition/model.ts'
import { runContent } from './commands/erase.ts'
import { EXPIRE_RUNS, runExpiryHandler, runExpirySchedule } from './commands/expire-runs.ts'
import { projectPauseHandlers, wakeRunsOnPause } from './commands/project-pause.ts'
import { removeRunsOfOrchestration } from './commands/remove-runs.ts'
import { runErrors } from './errors.ts'
import { requeueOrphanedNodes, runHandlers, runSchedules } from './handlers.ts'
import { runKind, sealedRuns } from './model.ts'
import { nodeTurns } from './nodes/agent.ts'
import { runApprovals } from './nodes/approval.ts'
import { runDecisions } from './nodes/decision.ts'
import { runOperations } from './operations.ts'
import { diagramOperation } from './reads/diagram.ts'
import { runWork } from './reads/long-work.ts'
import { statsOperations } from './reads/stats.ts'
import { oldestReadyAttempt } from './reads/stats-store.ts'
import { isTurnOfLiveRun } from './store.ts'

export default module('orchestration-runs', {
  errors: runErrors,
  kinds: [runKind],
  operations: [diagramOperation, ...runOperations, ...statsOperations],
  handlers: [...runHandlers, ...projectPauseHandlers, runExpiryHandler],
  schedules: [...runSchedules, runExpirySchedule],
  policyActions: [
    {
      action: EXPIRE_RUNS,
      description: 'Written to the audit log when runs past the retention of the project are deleted',
      resource_type: 'project',
    },
  ],
  sealedColumns: sealedRuns,
  extensions: [
    longWork.with(runWork),
    leaseHolding.with(requeueOrphanedNodes),
    turnOwners.with(nodeTurns),
    turnContent.with(runContent),
    turnHolds.with(isTurnOfLiveRun),
    approvalWaiters.with(runApprovals),
    decisionWaiters.with(runDecisions),
    onDelete(orchestrationKind, removeRunsOfOrchestration),
    pauseHooks.with(wakeRunsOnPause),
    resumeHooks.with(wakeRunsOnPause),
    waitingRows.with({ concern: 'orchestration', since: oldestReadyAttempt }),
    orchestrationRuns.with(id => sql.fragment`select r.id from orchestration_runs r where r.orchestration_id = ${id}`),
  ],
})
