import type { TurnContentEraser } from '../../control/retention/erasure.ts'
import { isObject } from '../../core/expressions/evaluate.ts'
import { redactionOf, withNulledKeys } from '../runs/commands/erase.ts'
import { executionKind } from './model.ts'
import { eraseStepsOf } from './store.ts'

type Data = Record<string, unknown>

/** What a turn was given and said goes from the records of the step that it was made for, and from what events show of it. */
export const stepContent: TurnContentEraser = {
  async erase(tx, turns) {
    const erased = await eraseStepsOf(
      tx,
      turns.map(({ id }) => id),
    )
    const keys = erased.map(({ execution_id, key }) => [execution_id, key] as const)
    return {
      counts: { playbook_execution_steps: erased.length },
      events: [redactionOf(executionKind.name, keys, withoutSteps)],
    }
  },
}

/** Data of an event without what came of some steps. */
function withoutSteps(data: Data, keys: ReadonlySet<string>): Data {
  const blank = (step: unknown) =>
    isObject(step) && keys.has(step.key as string) ? { ...step, input: null, output: null } : step
  const { steps, step, output } = data
  return {
    ...data,
    ...(Array.isArray(steps) ? { steps: steps.map(blank) } : {}),
    ...(step === undefined ? {} : { step: blank(step) }),
    ...(output === undefined ? {} : { output: withNulledKeys(output, keys) }),
  }
}
