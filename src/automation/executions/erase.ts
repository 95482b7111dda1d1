import type { TurnContent } from '../../control/retention/content.ts'
import { isObject } from '../../core/expressions/evaluate.ts'
import { executionKind } from './model.ts'
import { eraseStepsOf } from './store.ts'

type Data = Record<string, unknown>

/** What a turn was given and said goes from the records of the step that it was made for, and from what events show of it. */
export const stepContent: TurnContent = {
  async erase(tx, turns) {
    const generations = turns.map(({ id }) => id)
    const erased = await eraseStepsOf(tx, generations)
    const steps = new Map<string, Set<string>>()
    for (const { execution_id, key } of erased) steps.set(execution_id, (steps.get(execution_id) ?? new Set()).add(key))
    const without = (data: Data): Data => withoutSteps(data, steps.get(data.id as string) ?? new Set())
    return {
      counts: { playbook_execution_steps: erased.length },
      events: [{ resource_type: executionKind.name, ids: [...steps.keys()], without }],
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
    ...(isObject(output)
      ? {
          output: Object.fromEntries(Object.entries(output).map(([key, value]) => [key, keys.has(key) ? null : value])),
        }
      : {}),
  }
}
