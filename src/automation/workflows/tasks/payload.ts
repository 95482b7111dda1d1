import { valueProblems } from '#automation/orchestrations/definition/schemas.ts'
import { AppError, type Problem } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Machine } from '../definition/definition.ts'
import { PAYLOAD_BYTES } from './model.ts'

/** Returns the problems of a payload by the schema of its workflow version and the size limit. */
export const payloadProblems = async (
  services: Services,
  project_id: string,
  { definition: { payload_schema } }: Machine,
  payload: Record<string, unknown>,
): Promise<Problem[]> => [
  ...sizeProblems(payload),
  ...(await valueProblems(services, project_id, payload_schema, payload, ['payload', 'payload_schema'])),
]

export const PAYLOAD_SIZE_PROBLEM: Problem = { code: 'TOO_BIG', path: 'payload', message: 'must be at most 256 KiB' }

const sizeProblems = (payload: Record<string, unknown>): Problem[] =>
  Buffer.byteLength(JSON.stringify(payload)) > PAYLOAD_BYTES ? [PAYLOAD_SIZE_PROBLEM] : []

export const payloadInvalidError = (problems: readonly Problem[]): AppError =>
  new AppError('TASK_PAYLOAD_INVALID', {
    message: `${problems[0].path}: ${problems[0].message}`,
    meta: { problems },
  })
