import { type Fragment, sql } from '../../core/db/sql.ts'
import type { EndUser } from '../../core/iam/caller.ts'

/** Expression for the feedback of an end user on a message `m`. By feedback_message. */
export const ownFeedback = ({ actor_id }: EndUser): Fragment => sql.fragment`(
  select jsonb_build_object('rating', f.rating, 'score', f.score, 'labels', f.labels, 'comment', f.comment)
  from feedback f
  where f.conversation_id = m.conversation_id and f.document_id = m.document_id
    and f.author_type = 'actor' and f.author_id = ${actor_id})`
