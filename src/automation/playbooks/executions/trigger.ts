import { z } from 'zod'
import { createCase } from '#automation/cases/create.ts'
import { CaseInput, caseKind } from '#automation/cases/model.ts'
import { byCaller } from '#automation/cases/timeline.ts'
import { inputInvalid, type TriggerTarget } from '#automation/triggers/targets.ts'
import { permissionCheckFor } from '#core/api/access.ts'
import type { KindRow } from '#core/api/kind.ts'
import { parse } from '#core/api/validate.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { playbookKind } from '../definition/model.ts'
import { startExecution } from './start.ts'

const FiringInput = z
  .strictObject({
    case_id: z.string().min(1).max(255).optional(),
    case: CaseInput.omit({ project_id: true, start_execution: true, input: true }).optional(),
    input: z.record(z.string(), z.unknown()).optional(),
  })
  .refine(input => (input.case_id === undefined) !== (input.case === undefined), {
    message: 'must contain exactly one of case_id and case',
  })
type FiringInput = z.output<typeof FiringInput>

/** Errors of case and execution that a firing reports as TRIGGER_INPUT_INVALID. */
const INPUT_ERRORS = ['VALIDATION_FAILED', 'ACTOR_NOT_FOUND', 'RESOURCE_NOT_FOUND']

async function withInputErrors<T>(work: () => T | Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (error instanceof AppError && INPUT_ERRORS.includes(error.code)) return inputInvalid(error.message, error)
    throw error
  }
}

/** A firing of a playbook starts an execution on the given case or on a new case. */
export const playbookTarget: TriggerTarget = {
  type: 'playbook',
  kind: playbookKind.name,
  action: 'playbooks:StartExecution',
  prepare: (_services, { input }) => withInputErrors(() => parse(FiringInput, input, 'input')),
  async start(tx, services, { trigger, target, authority, caller, prepared }) {
    const { project_id } = trigger
    const firingInput = prepared as FiringInput
    const playbook = await playbookKind.reference(tx, target.id, project_id)
    if (!playbook) return raise('TRIGGER_TARGET_NOT_FOUND', { meta: { target_type: 'playbook', target_id: target.id } })
    const allow = permissionCheckFor(caller)
    allow('playbooks:GetPlaybook', { kind: playbookKind, row: playbook })
    return withInputErrors(async () => {
      const kase = await findOrCreateCase()
      allow('playbooks:StartExecution', { kind: caseKind, row: kase })
      const { row } = await startExecution(tx, services, kase.id, {
        playbook,
        input: firingInput.input ?? {},
        metadata: null,
        tool_context: null,
        authority,
        by: byCaller(caller),
        trigger_id: trigger.id,
      })
      return { result_id: row.id, status: row.status, over: true }
    })

    async function findOrCreateCase(): Promise<KindRow> {
      if (firingInput.case === undefined) {
        const id = firingInput.case_id as string
        const row = await caseKind.reference(tx, id, project_id)
        return row ?? raise('RESOURCE_NOT_FOUND', { message: `Case ${id} not found`, meta: { id } })
      }
      allow('cases:CreateCase', { kind: caseKind, project_id })
      const body = { playbook_id: playbook?.id, ...firingInput.case }
      const created = await createCase({ tx, services, caller, allow, project: project_id }, body as never, null)
      return 'existing' in created ? created.existing : created
    }
  },
}
