import { raiseLimit } from '#conversation/actors/limits.ts'
import { comparedText } from '#conversation/dialog/mailbox/reply-hash.ts'
import { countStatement, type Queryable, sql } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import type { Spoken } from './align.ts'

/** Turns of an end user among which a text of the assistant is searched. */
const RECENT_TURNS = 500

/** Characters that a client may add to a reply in `details` blocks, for example its reasoning. */
const MAX_ADDED_CHARS = 65_536

/**
 * Counts texts of the assistant in the history of a request against the limit of the end user's messages, because the end
 * user may have written them. A longer text must be a reply of the agent to the end user. A text that is longer than any
 * reply is refused before it is read.
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
  const longest = await lengthOfLongestReply(db, end_user.actor_id, agentId)
  if (long.some(({ text }) => text.length > longest + MAX_ADDED_CHARS)) raiseLimit(end_user, 'message_chars')
  const texts = [...new Set(long.map(({ text }) => comparedText(text)))]
  if ((await countUnknown(db, end_user.actor_id, agentId, texts)) > 0) raiseLimit(end_user, 'message_chars')
}

/** Selects the replies of recent turns. By generations_actor. */
const recentReplies = (actorId: string, agentId: string) => sql.fragment`(
  select btrim(output ->> 'content', E' \\t\\r\\n') as content from generations
  where actor_id = ${actorId} and agent_id = ${agentId} order by created_at desc limit ${RECENT_TURNS})`

/** Returns the length of the longest reply of recent turns in UTF-8 bytes, of which a text has at least one for each character. */
const lengthOfLongestReply = (db: Queryable, actorId: string, agentId: string): Promise<number> =>
  db.oneFirst(countStatement`
    select coalesce(max(octet_length(g.content)), -${MAX_ADDED_CHARS}::int) as count from ${recentReplies(actorId, agentId)} g`)

/** Returns how many of the texts are no replies of recent turns. */
const countUnknown = (db: Queryable, actorId: string, agentId: string, texts: readonly string[]): Promise<number> =>
  db.oneFirst(countStatement`
    select count(*)::int as count from unnest(${sql.array([...texts], 'text')}) as t (text)
    where not exists (select from ${recentReplies(actorId, agentId)} g where g.content = t.text)`)
