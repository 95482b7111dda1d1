import { createHmac, timingSafeEqual } from 'node:crypto'
import type { Services } from '#core/base/services.ts'
import type { Caller } from '#core/iam/caller.ts'

/** IDs of tasks: the ID of the record, and a signature for the principal that started the task. */

const LENGTH = 22

const signatureFor = (secret: string, recordId: string, { type, id }: Caller['principal']): string =>
  createHmac('sha256', secret).update(`mcp task ${recordId} ${type} ${id}`).digest('base64url').slice(0, LENGTH)

export const taskId = ({ config }: Services, recordId: string, { principal }: Caller): string =>
  `${recordId}.${signatureFor(config.JWT_SECRET, recordId, principal)}`

/** Returns the record of a task of the caller; null if the task ID is invalid for the caller. */
export function recordOfTaskId({ config }: Services, task: string, { principal }: Caller): string | null {
  const at = task.lastIndexOf('.')
  const [record, mark] = [task.slice(0, at), Buffer.from(task.slice(at + 1))]
  const secrets = [config.JWT_SECRET, config.JWT_SECRET_PREVIOUS].filter(secret => secret !== null)
  const isMarked = secrets.some(secret => {
    const expected = Buffer.from(signatureFor(secret, record, principal))
    return expected.length === mark.length && timingSafeEqual(expected, mark)
  })
  return at > 0 && isMarked ? record : null
}
