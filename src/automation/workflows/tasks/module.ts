import { runWaiters } from '#automation/orchestrations/runs/engine/run-notifications.ts'
import { firingWaiters } from '#automation/triggers/settle.ts'
import { turnContent } from '#control/retention/erasure.ts'
import { onDelete } from '#core/api/dependents.ts'
import { module } from '#core/modules/module.ts'
import { approvalEffects, approvalWaiters } from '#execution/approvals/model.ts'
import { turnOwners } from '#execution/generations/loop/turn-owner.ts'
import { resumeHooks } from '#identity/projects/pause.ts'
import { workflowKind } from '../definition/model.ts'
import { refuseOpenTasks } from './delete-task.ts'
import { taskContent } from './erase.ts'
import { taskErrors } from './errors.ts'
import { dispatchWork } from './execute-dispatch.ts'
import { sealedTaskColumns, taskKind } from './model.ts'
import { taskOperations } from './operations.ts'
import { projectTasksHandler, resumeTasks } from './pause.ts'
import { taskFirings, taskRuns, taskTurns } from './targets.ts'
import { settleHandler, taskApprovals, taskDecisions } from './transition-approval.ts'

export default module('tasks', {
  tags: { Tasks: 'Items that move through the states of a workflow, manually and by automation.' },
  errors: taskErrors,
  kinds: [taskKind],
  operations: taskOperations,
  work: [dispatchWork],
  handlers: [settleHandler, projectTasksHandler],
  sealedColumns: sealedTaskColumns,
  extensions: [
    turnOwners.with(taskTurns),
    runWaiters.with(taskRuns),
    firingWaiters.with(taskFirings),
    approvalEffects.with(taskDecisions),
    approvalWaiters.with(taskApprovals),
    onDelete(workflowKind, refuseOpenTasks),
    resumeHooks.with(resumeTasks),
    turnContent.with(taskContent),
  ],
})
