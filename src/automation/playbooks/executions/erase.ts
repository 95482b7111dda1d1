import { redactionOf, withNulledKeys } from '#automation/orchestrations/runs/commands/erase.ts'
import type { TurnContentEraser } from '#control/retention/erasure.ts'
import { isObject } from '#core/base/exact-json.ts'
import { executionKind } from './model.ts'
import { eraseTurnSteps } from './store.ts'

type EventData = Record<string, unknown>

/** Erases the input and output of a turn from the record of its step and from events. */
export const stepContent: TurnContentEraser = {
  async erase(tx, turns) {
    const erased = await eraseTurnSteps(
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

/** Removes the input and output of steps from event data. */
function withoutSteps(data: EventData, keys: ReadonlySet<string>): EventData {
  const redact = (step: unknown) =>
    isObject(step) && keys.has(step.key as string) ? { ...step, input: null, output: null } : step
  const { steps, step, output } = data
  return {
    ...data,
    ...(Array.isArray(steps) ? { steps: steps.map(redact) } : {}),
    ...(step === undefined ? {} : { step: redact(step) }),
    ...(output === undefined ? {} : { output: withNulledKeys(output, keys) }),
  }
}
