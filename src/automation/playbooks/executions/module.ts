import { type CaseExecutions, caseExecutions } from '#automation/cases/executions.ts'
import { caseKind } from '#automation/cases/model.ts'
import { clearPlaybook } from '#automation/cases/store.ts'
import { byCaller } from '#automation/cases/timeline.ts'
import { runDrivers } from '#automation/orchestrations/runs/engine/driver.ts'
import { deleteRuns } from '#automation/orchestrations/runs/store.ts'
import { triggerTargets } from '#automation/triggers/targets.ts'
import { eventSubscribers } from '#control/webhooks/event-subscribers.ts'
import { isIdOf } from '#core/api/kind.ts'
import { longWork } from '#core/api/long-work.ts'
import { raise } from '#core/base/errors.ts'
import { principalRecord } from '#core/iam/caller.ts'
import { module } from '#core/modules/module.ts'
import { subscriberConditions } from '#core/writes/writer.ts'
import { type PlaybookDeleteHook, playbookDeleteHooks } from '../definition/delete-hooks.ts'
import { playbookKind } from '../definition/model.ts'
import { type ExecutionSource, exportedExecutions } from '../exports/executions.ts'
import { executionErrors } from './errors.ts'
import { eventHandlers, executionEvents, hasEventWait } from './events.ts'
import { executionHandlers, executionSchedules } from './handlers.ts'
import { executionWork } from './long-work.ts'
import { executionKind } from './model.ts'
import { executionOperations } from './operations.ts'
import { presentExecutionDetail } from './present-execution.ts'
import { playbookRuns } from './run-driver.ts'
import { startExecution } from './start.ts'
import { countActiveExecutions, executionBytes, listCaseExecutions, listCaseRunIds } from './store.ts'
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

/** Source of executions for exports. */
const executionSource: ExecutionSource = {
  reference: async (db, id) => {
    const row = isIdOf(executionKind, id) ? await executionKind.find(db, id) : null
    const locked = row && (await executionKind.reference(db, id, row.project_id))
    return locked && { project_id: locked.project_id, case_id: locked.case_id }
  },
  bytes: (db, { case_id, execution_id }) => executionBytes(db, case_id, execution_id),
  async read(db, { case_id, execution_id }) {
    const rows = await listCaseExecutions(db, case_id, execution_id)
    const executions = []
    for (const row of rows) {
      const { steps, ...execution } = await presentExecutionDetail(db, row)
      executions.push({ ...execution, steps: steps ?? [], definition: row.definition })
    }
    return executions
  },
}

/** Refuses to delete a playbook with active executions. Removes it from cases as their default. */
const beforePlaybookDelete: PlaybookDeleteHook = async (tx, { id }) => {
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
    playbookDeleteHooks.with(beforePlaybookDelete),
    triggerTargets.with(playbookTarget),
    exportedExecutions.with(executionSource),
    subscriberConditions.with(hasEventWait),
    eventSubscribers.with(executionEvents),
  ],
})
