import { z } from 'zod'
import { itemOperation } from '#core/api/operation.ts'
import { type Queryable, voidStatement } from '#core/db/sql.ts'
import { readAccess } from './end-user.ts'
import { sessionKind } from './kind.ts'

/** Moves the position that the end user has seen, never back and not past the last message. */
const markRead = (db: Queryable, sessionId: string, position: number): Promise<unknown> =>
  db.query(voidStatement`
    update sessions s set read_position = m.last
    from (
      select least(${position}::int, max(m.position)) as last from conversation_messages m
      where m.conversation_id = (select conversation_id from sessions where id = ${sessionId})) m
    where s.id = ${sessionId} and m.last > coalesce(s.read_position, -1)`)

const ReadInput = z
  .strictObject({
    position: z.int().min(0).max(2_147_483_647).describe('Position of the last message that the end user has seen'),
  })
  .meta({ id: 'SessionReadInput', example: { position: 4 } })

export const readOperation = itemOperation(sessionKind, {
  id: 'markSessionRead',
  command: ['sessions', 'mark-read'],
  method: 'post',
  path: '/sessions/{session_id}/read',
  summary: 'Mark session messages as read',
  description:
    'Stores the highest position that the end user has seen, from which `unread_count` is counted. A lower position has no effect.',
  tag: 'Sessions',
  action: 'sessions:SendSessionMessage',
  endUser: readAccess,
  body: ReadInput,
  answers: { 204: null },
  run: async ({ tx, resource, body }) => {
    await markRead(tx, resource.id, body.position)
  },
})
