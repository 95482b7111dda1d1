import { AppError, type Problem } from '../../core/api/errors.ts'
import { schemaChecks } from '../../core/json-schema/checks.ts'
import type { Services } from '../../core/process/services.ts'
import { checkedValue } from '../orchestrations/schemas.ts'
import type { Machine } from '../workflows/definition.ts'
import { PAYLOAD_BYTES } from './model.ts'

/** What a payload is checked with, and where: within a transaction it may have to be run again (RunFirst). */
export const payloadProblems = (
  services: Services,
  project_id: string,
  { definition: { payload_schema } }: Machine,
  payload: Record<string, unknown>,
  inTransaction: boolean,
): Promise<Problem[]> =>
  checkedValue(project_id, payload_schema, ['payload', 'payload_schema'], schema =>
    inTransaction
      ? schemaChecks(services).problemsInTransaction(schema, payload)
      : schemaChecks(services)
          .problems(schema, [payload])
          .then(([problems]) => problems),
  ).then(problems => [...sizeProblems(payload), ...problems])

export const PAYLOAD_TOO_BIG: Problem = { code: 'TOO_BIG', path: 'payload', message: 'must be at most 256 KiB' }

const sizeProblems = (payload: Record<string, unknown>): Problem[] =>
  Buffer.byteLength(JSON.stringify(payload)) > PAYLOAD_BYTES ? [PAYLOAD_TOO_BIG] : []

export const payloadInvalid = (problems: readonly Problem[]): AppError =>
  new AppError('TASK_PAYLOAD_INVALID', {
    message: `${problems[0].path}: ${problems[0].message}`,
    meta: { problems },
  })
