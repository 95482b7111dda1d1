import type { Services } from '../../core/process/services.ts'
import { openJson, sealJson } from '../../core/secrets/json.ts'
import { type EvalRunRow, evalRunSeal } from './model.ts'

type Owner = Pick<EvalRunRow, 'id' | 'project_id'>

/** The tool context of a run as it is stored; null without one. */
export const sealEvalContext = (services: Services, run: Owner, bag: Record<string, string> | null): string | null =>
  bag && sealJson(services, bag, evalRunSeal(run))

/** What calls of tools carry; null without it, and once no item of the run is under way. Raises SECRET_NOT_DECRYPTABLE. */
export function evalToolContext(
  services: Services,
  run: Owner & Pick<EvalRunRow, 'context'>,
): Record<string, string> | null {
  return run.context === null ? null : openJson(services, run.context, evalRunSeal(run), 'The tool context of the run')
}
