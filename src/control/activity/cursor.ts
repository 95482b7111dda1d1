import { raise } from '../../core/api/errors.ts'
import { isIdOf } from '../../core/api/kind.ts'
import { parseTime } from '../../core/api/lists.ts'
import { activityKind } from './model.ts'
import type { Position } from './store.ts'

/** The cursor of an entry: where the page after it begins. */
export const encodeCursor = ({ created_at, id }: Position): string =>
  Buffer.from(`${created_at}|${id}`).toString('base64url')

/** The place that a cursor names. Raises ACTIVITY_INVALID_CURSOR. */
export function decodeCursor(cursor: string): Position {
  const [created_at, id, ...more] = Buffer.from(cursor, 'base64url').toString().split('|')
  const time = parseTime(created_at)
  const valid = more.length === 0 && time?.toISOString() === created_at && isIdOf(activityKind, id ?? '')
  if (!valid || encodeCursor({ created_at, id }) !== cursor)
    return raise('ACTIVITY_INVALID_CURSOR', { message: 'The cursor is not one that the feed has given' })
  return { created_at, id }
}
