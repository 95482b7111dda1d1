import { AppError, type RecordedFailure, raise } from '#core/base/errors.ts'
import type { Waiter } from '#core/work/waiters.ts'
import { type OrchestrationRow, orchestrationKind } from '../orchestrations/definition/model.ts'
import { inputProblems, requireSize, startRun } from '../orchestrations/runs/commands/start-run.ts'
import type { RunRow } from '../orchestrations/runs/model.ts'
import { settleStarted } from './settle.ts'
import { inputInvalid, type TriggerTarget } from './targets.ts'

/** A firing of an orchestration starts a run, which settles the firing. */
export const orchestrationTarget: TriggerTarget = {
  type: 'orchestration',
  kind: orchestrationKind.name,
  action: 'orchestrations:StartRun',
  async prepare(services, { target, input }) {
    try {
      requireSize(input)
    } catch (error) {
      inputInvalid('input: must be at most 1 MiB of JSON', error as AppError)
    }
    const problems = await inputProblems(services, target as OrchestrationRow, input)
    if (problems.length > 0)
      raise('TRIGGER_INPUT_INVALID', { message: `${problems[0].path}: ${problems[0].message}`, meta: { problems } })
    return null
  },
  starts: 'orchestration_run',
  async start(tx, services, { id, trigger, target, authority, input }) {
    const orchestration = await orchestrationKind.reference(tx, target.id, trigger.project_id)
    if (!orchestration)
      return raise('TRIGGER_TARGET_NOT_FOUND', { meta: { target_type: 'orchestration', target_id: target.id } })
    const run = await startRun(tx, services, {
      orchestration,
      // The version that the input was validated against.
      version: (target as OrchestrationRow).version,
      input,
      authority,
      permission: { action: 'orchestrations:StartRun', kind: orchestrationKind.name, id: orchestration.id },
      trigger: { id: trigger.id, firing_id: id },
    })
    return { result_id: run.id, status: run.status, over: false }
  },
}

/** Settles the firing of a root run that has settled or awaits input. */
export const triggeredRuns: Waiter<RunRow> = {
  mayWait: ({ trigger_firing_id, parent_id }) => trigger_firing_id !== null && parent_id === null,
  async settled(tx, { id, status, output, error }) {
    if (status === 'succeeded' || status === 'awaiting_input') await settleStarted(tx, id, { status, output })
    else if (status === 'failed' || status === 'cancelled' || status === 'expired')
      await settleStarted(tx, id, { status, output: null, error: error ?? missingError(id, status) })
  },
}

const missingError = (id: string, status: RunRow['status']): RecordedFailure =>
  (status === 'failed'
    ? new AppError('INTERNAL_ERROR')
    : new AppError('ORCHESTRATION_DISPATCH_FAILED', {
        message: `Run ${id} ended as ${status}`,
        meta: { orchestration_run_id: id, run_status: status },
      })
  ).recorded()
