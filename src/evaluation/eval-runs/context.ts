import { AppError } from '../../core/api/errors.ts'
import type { Services } from '../../core/process/services.ts'
import { type EvalRunRow, sealOf } from './model.ts'

type Owner = Pick<EvalRunRow, 'id' | 'project_id'>

/** The tool context of a run as it is stored; null without one. */
export const sealedContext = (services: Services, run: Owner, bag: Record<string, string> | null): string | null =>
  bag && services.secrets.seal(JSON.stringify(bag), sealOf(run))

/** What calls of tools carry; null without it, and once the run has ended. Raises SECRET_NOT_DECRYPTABLE. */
export function contextOf(services: Services, run: Owner & Pick<EvalRunRow, 'context'>): Record<string, string> | null {
  if (run.context === null) return null
  const opened = services.secrets.open(run.context, sealOf(run))
  if (!opened.ok)
    throw new AppError('SECRET_NOT_DECRYPTABLE', { message: 'The tool context of the run cannot be decrypted' })
  return JSON.parse(opened.value)
}
