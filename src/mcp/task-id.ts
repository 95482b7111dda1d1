import { createHmac, timingSafeEqual } from 'node:crypto'
import type { Caller } from '../core/iam/caller.ts'
import type { Services } from '../core/process/services.ts'

/** Names of tasks: the record, and a mark that only the principal that started it can have been given. */

const LENGTH = 22

const markOf = (secret: string, recordId: string, { type, id }: Caller['principal']): string =>
  createHmac('sha256', secret).update(`mcp task ${recordId} ${type} ${id}`).digest('base64url').slice(0, LENGTH)

export const taskId = ({ config }: Services, recordId: string, { principal }: Caller): string =>
  `${recordId}.${markOf(config.JWT_SECRET, recordId, principal)}`

/** The record of a task of the caller; null for what is none. */
export function recordIn({ config }: Services, task: string, { principal }: Caller): string | null {
  const at = task.lastIndexOf('.')
  const [record, mark] = [task.slice(0, at), Buffer.from(task.slice(at + 1))]
  const secrets = [config.JWT_SECRET, config.JWT_SECRET_PREVIOUS].filter(secret => secret !== null)
  const isMarked = secrets.some(secret => {
    const expected = Buffer.from(markOf(secret, record, principal))
    return expected.length === mark.length && timingSafeEqual(expected, mark)
  })
  return at > 0 && isMarked ? record : null
}
