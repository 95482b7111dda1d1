import { type Fragment, sql } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'

/**
 * Expression for the feedback of an end user on a message `m`. Null for other callers, which include turns: comments are
 * given to no model. By feedback_message.
 */
export const ownFeedback = ({ end_user }: Pick<Caller, 'end_user'>): Fragment =>
  end_user
    ? sql.fragment`(
        select jsonb_build_object('rating', f.rating, 'score', f.score, 'labels', f.labels, 'comment', f.comment)
        from feedback f
        where f.conversation_id = m.conversation_id and f.document_id = m.document_id
          and f.author_type = 'actor' and f.author_id = ${end_user.actor_id})`
    : sql.fragment`null::jsonb`
