import { raiseLimit } from '../../conversation/actors/limits.ts'
import { comparedText } from '../../conversation/turns/reply-hash.ts'
import { countStatement, type Queryable, sql } from '../../core/db/sql.ts'
import type { Caller } from '../../core/iam/caller.ts'
import type { Spoken } from './align.ts'

/** Turns of an end user among which a text of the assistant is searched. */
const RECENT_TURNS = 500

/**
 * Counts texts of the assistant in the history of a request against the limit of the end user's messages, because the end
 * user may have written them. A longer text must be a reply of the agent to the end user.
 * @throws ACTOR_LIMIT_EXCEEDED
 */
export async function limitHistory(
  db: Queryable,
  { end_user }: Caller,
  agentId: string,
  history: readonly Spoken[],
): Promise<void> {
  if (!end_user) return
  const long = history.filter(({ role, text }) => role === 'assistant' && text.length > end_user.limits.message_chars)
  if (long.length === 0) return
  const texts = [...new Set(long.map(({ text }) => comparedText(text)))]
  if ((await countUnknown(db, end_user.actor_id, agentId, texts)) > 0) raiseLimit(end_user, 'message_chars')
}

/** Returns how many of the texts are no replies of recent turns. By generations_actor. */
const countUnknown = (db: Queryable, actorId: string, agentId: string, texts: readonly string[]): Promise<number> =>
  db.oneFirst(countStatement`
    select count(*)::int as count from unnest(${sql.array([...texts], 'text')}) as t (text)
    where not exists (
      select from (
        select btrim(output ->> 'content', E' \\t\\r\\n') as content from generations
        where actor_id = ${actorId} and agent_id = ${agentId} order by created_at desc limit ${RECENT_TURNS}) g
      where g.content = t.text)`)
