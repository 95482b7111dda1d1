import { isIdOf } from '#core/api/kind.ts'
import { parseTime } from '#core/api/lists.ts'
import { raise } from '#core/base/errors.ts'
import { activityKind } from './model.ts'
import type { FeedPosition } from './store.ts'

/** Returns the cursor of an entry; the next page begins after it. */
export const encodeCursor = ({ created_at, id }: FeedPosition): string =>
  Buffer.from(`${created_at}|${id}`).toString('base64url')

/** @throws ACTIVITY_INVALID_CURSOR */
export function decodeCursor(cursor: string): FeedPosition {
  const [created_at, id, ...more] = Buffer.from(cursor, 'base64url').toString().split('|')
  const time = parseTime(created_at)
  const valid = more.length === 0 && time?.toISOString() === created_at && isIdOf(activityKind, id ?? '')
  if (!valid || encodeCursor({ created_at, id }) !== cursor)
    return raise('ACTIVITY_INVALID_CURSOR', { message: 'Cursor is not valid for this feed' })
  return { created_at, id }
}
