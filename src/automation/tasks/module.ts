import { turnContent } from '../../control/retention/content.ts'
import { module } from '../../core/api/module.ts'
import { leaseHolding } from '../../core/jobs/takeover.ts'
import { nodeApprovals } from '../../execution/approvals/producers.ts'
import { turnOwners } from '../../execution/generations/source.ts'
import { resumes } from '../../identity/projects/pause.ts'
import { runWatchers } from '../runs/watchers.ts'
import { firingWatchers } from '../triggers/targets.ts'
import { workflowEnds } from '../workflows/ends.ts'
import { taskContent } from './erase.ts'
import { taskErrors } from './errors.ts'
import { taskApprovals } from './gate.ts'
import { taskHandlers, taskSchedules } from './handlers.ts'
import { sealedTasks, taskKind } from './model.ts'
import { taskOperations } from './operations.ts'
import { resumeTasks } from './pause.ts'
import { keepOpen } from './remove.ts'
import { dispatchAttempts } from './store.ts'
import { taskFirings, taskRuns, taskTurns } from './targets.ts'

export default module('tasks', {
  tags: { Tasks: 'Work items in a state of a workflow, with its automation.' },
  errors: taskErrors,
  kinds: [taskKind],
  operations: taskOperations,
  handlers: taskHandlers,
  schedules: taskSchedules,
  sealedColumns: sealedTasks,
  extensions: [
    leaseHolding.with(dispatchAttempts.endLeases),
    turnOwners.with(taskTurns),
    runWatchers.with(taskRuns),
    firingWatchers.with(taskFirings),
    nodeApprovals.with(taskApprovals),
    workflowEnds.with(keepOpen),
    resumes.with(resumeTasks),
    turnContent.with(taskContent),
  ],
})
