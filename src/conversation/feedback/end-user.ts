import { type EndUserAccess, endUserView } from '#core/api/end-user.ts'
import { sql } from '#core/db/sql.ts'
import { ownSessionIds, sessionAccess } from '../sessions/end-user.ts'

/** Access of end users to their feedback on replies in their sessions. */

const view = endUserView(
  [
    'id',
    'session_id',
    'document_id',
    'generation_id',
    'rating',
    'score',
    'labels',
    'comment',
    'created_at',
    'updated_at',
  ],
  ['project_id', 'agent_id', 'agent_version', 'author'],
)

export const giveAccess: EndUserAccess = sessionAccess({
  scope: 'feedback',
  fields: ['rating', 'score', 'labels', 'comment'],
  view,
})

export const listAccess: EndUserAccess = {
  scope: 'feedback',
  query: ['session_id', 'generation_id'],
  rows: endUser => sql.fragment`t.author_type = 'actor' and t.author_id = ${endUser.actor_id}
    and t.session_id in (${ownSessionIds(endUser)})`,
  view,
}
