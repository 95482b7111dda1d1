import { eventSubscribers } from '../../control/webhooks/event-subscribers.ts'
import { raise } from '../../core/api/errors.ts'
import { longWork } from '../../core/api/long-work.ts'
import { module } from '../../core/api/module.ts'
import { subscriberConditions } from '../../core/db/writer.ts'
import { principalRecord } from '../../core/iam/caller.ts'
import { type CaseExecutions, caseExecutions } from '../cases/executions.ts'
import { caseKind } from '../cases/model.ts'
import { clearPlaybook } from '../cases/store.ts'
import { byCaller } from '../cases/timeline.ts'
import { exportedExecutions } from '../exports/executions.ts'
import { type PlaybookDeleteHook, playbookDeleteHooks } from '../playbooks/delete-hooks.ts'
import { playbookKind } from '../playbooks/model.ts'
import { runDrivers } from '../runs/engine/driver.ts'
import { deleteRuns } from '../runs/store.ts'
import { triggerTargets } from '../triggers/targets.ts'
import { executionErrors } from './errors.ts'
import { eventHandlers, executionEvents, hasEventWait } from './events.ts'
import { executionSource } from './export.ts'
import { executionHandlers, executionSchedules } from './handlers.ts'
import { executionWork } from './long-work.ts'
import { executionKind } from './model.ts'
import { executionOperations } from './operations.ts'
import { playbookRuns } from './run-driver.ts'
import { startExecution } from './start.ts'
import { activeExecution, runIdsOf } from './store.ts'
import { playbookTarget } from './trigger.ts'

/** What cases ask of executions. */
const executionsOfCases: CaseExecutions = {
  async start({ tx, services, caller, allow }, row, input) {
    const playbook = await playbookKind.reference(tx, row.playbook_id as string, row.project_id)
    if (!playbook) return raise('RESOURCE_NOT_FOUND', { meta: { id: row.playbook_id } })
    allow('playbooks:StartExecution', { kind: caseKind, row })
    allow('playbooks:GetPlaybook', { kind: playbookKind, row: playbook })
    const started = await startExecution(tx, services, row.id, {
      playbook,
      input,
      metadata: null,
      tool_context: null,
      authority: principalRecord(caller),
      by: byCaller(caller),
    })
    return started.case
  },
  statusOf: async (db, id) => (await executionKind.find(db, id))?.status ?? null,
  async remove(tx, row) {
    await deleteRuns(tx, await runIdsOf(tx, row.id))
  },
}

/** A playbook is not deleted while an execution is under way. Cases lose it as their default. */
const endOfPlaybook: PlaybookDeleteHook = async (tx, { id }) => {
  const active_executions = await activeExecution(tx, id)
  if (active_executions > 0) raise('PLAYBOOK_HAS_ACTIVE_EXECUTIONS', { meta: { active_executions } })
  await clearPlaybook(tx, id)
}

export default module('playbook-executions', {
  errors: executionErrors,
  kinds: [executionKind],
  operations: executionOperations,
  handlers: [...executionHandlers, ...eventHandlers],
  schedules: executionSchedules,
  extensions: [
    longWork.with(executionWork),
    runDrivers.with(playbookRuns),
    caseExecutions.with(executionsOfCases),
    playbookDeleteHooks.with(endOfPlaybook),
    triggerTargets.with(playbookTarget),
    exportedExecutions.with(executionSource),
    subscriberConditions.with(hasEventWait),
    eventSubscribers.with(executionEvents),
  ],
})
