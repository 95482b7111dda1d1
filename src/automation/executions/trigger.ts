import { z } from 'zod'
import { AppError, raise } from '../../core/api/errors.ts'
import type { KindRow } from '../../core/api/kind.ts'
import { parse } from '../../core/api/validate.ts'
import { allowedPatterns } from '../../core/iam/access.ts'
import { createCase } from '../cases/create.ts'
import { CaseInput, caseKind } from '../cases/model.ts'
import { byCaller } from '../cases/timeline.ts'
import { playbookKind } from '../playbooks/model.ts'
import { inputInvalid, type TriggerTarget } from '../triggers/targets.ts'
import { startExecution } from './start.ts'

/** Playbooks as targets: a firing starts an execution over a case, which it names or makes. */

const FiringInput = z
  .strictObject({
    case_id: z.string().min(1).max(255).optional(),
    case: CaseInput.omit({ project_id: true, start_execution: true, input: true }).optional(),
    input: z.record(z.string(), z.unknown()).optional(),
  })
  .refine(given => (given.case_id === undefined) !== (given.case === undefined), {
    message: 'must have exactly one of case_id and case',
  })
type FiringInput = z.output<typeof FiringInput>

/** What a firing cannot start with, in the words of triggers. */
const REFUSALS = ['VALIDATION_FAILED', 'ACTOR_NOT_FOUND', 'RESOURCE_NOT_FOUND']

async function asFiring<T>(work: () => T | Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (error instanceof AppError && REFUSALS.includes(error.code)) return inputInvalid(error.message, error)
    throw error
  }
}

export const playbookTarget: TriggerTarget = {
  type: 'playbook',
  kind: playbookKind.name,
  action: 'playbooks:StartExecution',
  prepare: (_services, { input }) => asFiring(() => parse(FiringInput, input, 'input')),
  async start(tx, services, { trigger, target, authority, caller, prepared }) {
    const { project_id } = trigger
    const given = prepared as FiringInput
    const playbook = await playbookKind.reference(tx, target.id, project_id)
    if (!playbook) return raise('TRIGGER_TARGET_NOT_FOUND', { meta: { target_type: 'playbook', target_id: target.id } })
    const allow = allowedPatterns(caller)
    allow('playbooks:GetPlaybook', { kind: playbookKind, row: playbook })
    return asFiring(async () => {
      const kase = await caseOf()
      allow('playbooks:StartExecution', { kind: caseKind, row: kase })
      const { row } = await startExecution(tx, services, kase.id, {
        playbook,
        input: given.input ?? {},
        metadata: null,
        tool_context: null,
        authority,
        by: byCaller(caller),
        trigger_id: trigger.id,
      })
      return { result_id: row.id, status: row.status, over: true }
    })

    async function caseOf(): Promise<KindRow> {
      if (given.case === undefined) {
        const id = given.case_id as string
        const row = await caseKind.reference(tx, id, project_id)
        return row ?? raise('RESOURCE_NOT_FOUND', { message: 'There is no such case', meta: { id } })
      }
      allow('cases:CreateCase', { kind: caseKind, project_id })
      const body = { playbook_id: playbook?.id, ...given.case }
      const made = await createCase({ tx, services, caller, allow, project: project_id }, body as never)
      return 'existing' in made ? made.existing : made
    }
  },
}
