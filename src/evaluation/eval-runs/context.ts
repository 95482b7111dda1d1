import type { Services } from '#core/base/services.ts'
import { openJson, sealJson } from '#core/secrets/json.ts'
import { type EvalRunRow, evalRunSeal } from './model.ts'

type RunRef = Pick<EvalRunRow, 'id' | 'project_id'>

/** Seals the tool context of a run for storage; null without one. */
export const sealEvalContext = (
  services: Services,
  run: RunRef,
  values: Record<string, string> | null,
): string | null => values && sealJson(services, values, evalRunSeal(run))

/**
 * Opens the tool context of a run; null without one, and after the last item ended.
 * @throws SECRET_NOT_DECRYPTABLE
 */
export function evalToolContext(
  services: Services,
  run: RunRef & Pick<EvalRunRow, 'context'>,
): Record<string, string> | null {
  return run.context === null ? null : openJson(services, run.context, evalRunSeal(run), 'Tool context of the eval run')
}
