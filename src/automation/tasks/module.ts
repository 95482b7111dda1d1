import { turnContent } from '../../control/retention/erasure.ts'
import { module } from '../../core/api/module.ts'
import { leaseHolding } from '../../core/jobs/takeover.ts'
import { approvalProducers } from '../../execution/approvals/approval-producers.ts'
import { turnOwners } from '../../execution/generations/loop/turn-owner.ts'
import { resumeHooks } from '../../identity/projects/pause.ts'
import { runWatchers } from '../runs/engine/run-watchers.ts'
import { firingWatchers } from '../triggers/targets.ts'
import { workflowEnds } from '../workflows/delete-hooks.ts'
import { refuseOpenTasks } from './delete-task.ts'
import { taskContent } from './erase.ts'
import { taskErrors } from './errors.ts'
import { taskHandlers, taskSchedules } from './handlers.ts'
import { sealedTaskColumns, taskKind } from './model.ts'
import { taskOperations } from './operations.ts'
import { resumeTasks } from './pause.ts'
import { taskDispatchWork } from './store.ts'
import { taskFirings, taskRuns, taskTurns } from './targets.ts'
import { taskApprovals } from './transition-approval.ts'

export default module('tasks', {
  tags: { Tasks: 'Items that move through the states of a workflow, manually and by automation.' },
  errors: taskErrors,
  kinds: [taskKind],
  operations: taskOperations,
  handlers: taskHandlers,
  schedules: taskSchedules,
  sealedColumns: sealedTaskColumns,
  extensions: [
    leaseHolding.with(taskDispatchWork.endLeases),
    turnOwners.with(taskTurns),
    runWatchers.with(taskRuns),
    firingWatchers.with(taskFirings),
    approvalProducers.with(taskApprovals),
    workflowEnds.with(refuseOpenTasks),
    resumeHooks.with(resumeTasks),
    turnContent.with(taskContent),
  ],
})
