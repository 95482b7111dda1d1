import { turnContent, turnHolds } from '../../control/retention/content.ts'
import { orchestrationRuns } from '../../control/usage/filters.ts'
import { longWork } from '../../core/api/long-work.ts'
import { module } from '../../core/api/module.ts'
import { sql } from '../../core/db/sql.ts'
import { leaseHolding } from '../../core/jobs/takeover.ts'
import { waitingRows } from '../../core/jobs/waiting-rows.ts'
import { nodeApprovals } from '../../execution/approvals/producers.ts'
import { decisionWatchers } from '../../execution/deciders/settle.ts'
import { turnOwners } from '../../execution/generations/source.ts'
import { pauses, resumes } from '../../identity/projects/pause.ts'
import { picturedRuns } from '../orchestrations/diagram.ts'
import { orchestrationEnds } from '../orchestrations/ends.ts'
import { nodeTurns } from './agent.ts'
import { runApprovals } from './approval.ts'
import { runDecisions } from './decision.ts'
import { runContent } from './erase.ts'
import { runErrors } from './errors.ts'
import { endNodeLeases, runHandlers, runSchedules } from './handlers.ts'
import { runWork } from './long-work.ts'
import { runKind, sealedRuns } from './model.ts'
import { runOperations } from './operations.ts'
import { picturedRun } from './picture.ts'
import { followPause, projectPauseHandlers } from './project-pause.ts'
import { endRuns } from './removal.ts'
import { statsOperations } from './stats.ts'
import { oldestReadyAttempt } from './stats-store.ts'
import { isTurnOfLiveRun } from './store.ts'

export default module('orchestration-runs', {
  errors: runErrors,
  kinds: [runKind],
  operations: [...runOperations, ...statsOperations],
  handlers: [...runHandlers, ...projectPauseHandlers],
  schedules: runSchedules,
  sealedColumns: sealedRuns,
  extensions: [
    longWork.with(runWork),
    leaseHolding.with(endNodeLeases),
    turnOwners.with(nodeTurns),
    turnContent.with(runContent),
    turnHolds.with(isTurnOfLiveRun),
    nodeApprovals.with(runApprovals),
    decisionWatchers.with(runDecisions),
    orchestrationEnds.with(endRuns),
    picturedRuns.with(picturedRun),
    pauses.with(followPause),
    resumes.with(followPause),
    waitingRows.with({ concern: 'orchestration', since: oldestReadyAttempt }),
    orchestrationRuns.with(id => sql.fragment`select r.id from orchestration_runs r where r.orchestration_id = ${id}`),
  ],
})
