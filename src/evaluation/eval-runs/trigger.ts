import { z } from 'zod'
import { inputInvalid, type TriggerTarget } from '#automation/triggers/targets.ts'
import { validationProblems } from '#core/api/validate.ts'
import { raise } from '#core/base/errors.ts'
import { evalKind } from '../evals/model.ts'
import { startEval } from './start.ts'

/** Fields of the trigger input that evals use; other fields are ignored. */
const TriggerInput = z.object({ agent_version: z.int().min(1).nullish(), baseline_run_id: z.string().min(1).nullish() })

/** Evals as trigger targets: a firing starts a run and then counts as succeeded. */
export const evalTarget: TriggerTarget = {
  type: 'eval',
  kind: evalKind.name,
  action: 'evaluations:RunEval',
  async prepare(_services, { input }) {
    const [problem] = validationProblems(TriggerInput, input, 'input')
    if (problem) inputInvalid(`${problem.path} ${problem.message}`)
    return TriggerInput.parse(input)
  },
  async start(tx, services, { trigger, target, authority, prepared }) {
    const row = await evalKind.reference(tx, target.id, trigger.project_id)
    if (!row) return raise('TRIGGER_TARGET_NOT_FOUND', { meta: { target_type: 'eval', target_id: target.id } })
    const parsedInput = prepared as z.output<typeof TriggerInput>
    const run = await startEval(tx, services, row, { ...parsedInput, authority, trigger_id: trigger.id })
    return { result_id: run.id, status: run.status, over: true }
  },
}
