import { type CaseExecutions, caseExecutions } from '#automation/cases/executions.ts'
import { caseKind } from '#automation/cases/model.ts'
import { clearPlaybook } from '#automation/cases/store.ts'
import { byCaller } from '#automation/cases/timeline.ts'
import { runDrivers } from '#automation/orchestrations/runs/engine/driver.ts'
import { deleteRuns } from '#automation/orchestrations/runs/store.ts'
import { triggerTargets } from '#automation/triggers/targets.ts'
import { eventSubscribers } from '#control/webhooks/event-subscribers.ts'
import { onDelete } from '#core/api/dependents.ts'
import { longWork } from '#core/api/long-work.ts'
import { raise } from '#core/base/errors.ts'
import { principalRecord } from '#core/iam/caller.ts'
import { module } from '#core/modules/module.ts'
import { subscriberConditions, type Tx } from '#core/writes/writer.ts'
import { type PlaybookRow, playbookKind } from '../definition/model.ts'
import { executionErrors } from './errors.ts'
import { eventHandlers, executionEvents, hasEventWait } from './events.ts'
import { executionHandlers, executionSchedules } from './handlers.ts'
import { executionWork } from './long-work.ts'
import { executionKind } from './model.ts'
import { executionOperations } from './operations.ts'
import { playbookRuns } from './run-driver.ts'
import { startExecution } from './start.ts'
import { countActiveExecutions, listCaseRunIds } from './store.ts'
import { playbookTarget } from './trigger.ts'

/** Operations for cases. */
const executionsForCases: CaseExecutions = {
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
    await deleteRuns(tx, await listCaseRunIds(tx, row.id))
  },
}

/** Refuses to delete a playbook with active executions. Removes it from cases as their default. */
async function beforePlaybookDelete(tx: Tx, { id }: PlaybookRow): Promise<void> {
  const active_executions = await countActiveExecutions(tx, id)
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
    caseExecutions.with(executionsForCases),
    onDelete(playbookKind, beforePlaybookDelete),
    triggerTargets.with(playbookTarget),
    subscriberConditions.with(hasEventWait),
    eventSubscribers.with(executionEvents),
  ],
})
