import { z } from 'zod'
import { inputInvalid, type TriggerTarget } from '../../automation/triggers/targets.ts'
import { raise } from '../../core/api/errors.ts'
import { validationProblems } from '../../core/api/validate.ts'
import { evalKind } from '../evals/model.ts'
import { startEval } from './start.ts'

/** What an input says; the rest of it is not for evals. */
const Input = z.object({ agent_version: z.int().min(1).nullish(), baseline_run_id: z.string().min(1).nullish() })

/** Evals as targets of triggers: a firing starts a run, with which it has succeeded. */
export const evalTarget: TriggerTarget = {
  type: 'eval',
  kind: evalKind.name,
  action: 'evaluations:RunEval',
  async prepare(_services, { input }) {
    const [problem] = validationProblems(Input, input, 'input')
    if (problem) inputInvalid(`${problem.path} ${problem.message}`)
    return Input.parse(input)
  },
  async start(tx, services, { trigger, target, authority, prepared }) {
    const row = await evalKind.reference(tx, target.id, trigger.project_id)
    if (!row) return raise('TRIGGER_TARGET_NOT_FOUND', { meta: { target_type: 'eval', target_id: target.id } })
    const given = prepared as z.output<typeof Input>
    const run = await startEval(tx, services, row, { ...given, authority, trigger_id: trigger.id })
    return { result_id: run.id, status: run.status, over: true }
  },
}
