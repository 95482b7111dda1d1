import { z } from 'zod'
import { messageTextJoin } from '#content/documents/message-text.ts'
import { type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { DEFAULT_KEEP_LAST } from '#execution/agents/context-policy.ts'
import { isInRefusedExchange } from '../messages/refused.ts'
import { ConversationSummary, type SummaryRow } from './model.ts'

const summaryRow = sql.type(ConversationSummary)
const columns = sql.fragment`conversation_id, up_to_position, text, tokens, agent_id, agent_version, created_at`

/** Returns the summary of a conversation, or null. By the primary key. */
export const findSummary = (db: Queryable, conversationId: string): Promise<SummaryRow | null> =>
  db.maybeOne(summaryRow`select ${columns} from conversation_summaries where conversation_id = ${conversationId}`)

/**
 * Ctes of the statement that reads a prompt: the summary that stands for the oldest messages, and the position after which
 * messages are read. The newest messages are read even if the summary covers them.
 * @param policy expression for the context policy of the turn; null if the turn uses no summary
 */
export const promptSummaryCtes = (conversationId: string, policy: Fragment): Fragment => sql.fragment`
  summary as (
    select s.text, s.up_to_position, coalesce((p.policy ->> 'keep_last_messages')::int, ${DEFAULT_KEEP_LAST}) as kept
    from conversation_summaries s, (select ${policy} as policy) p
    where s.conversation_id = ${conversationId} and p.policy ->> 'strategy' = 'summarize'
  ), covered as (
    select least(s.up_to_position, (
      select min(k.position) - 1 from (
        select position from conversation_messages
        where conversation_id = ${conversationId} order by position desc limit s.kept) k)) as position
    from summary s)`

/** Cte that deletes the summary of a conversation if it covers a position, whose message is inserted or deleted. */
export const deletedSummaryCte = (conversationId: string, position: Fragment): Fragment => sql.fragment`
  summary_deleted as (
    delete from conversation_summaries where conversation_id = ${conversationId} and up_to_position >= ${position})`

/**
 * Deletes the summaries that cover erased messages, in all conversations that have them. Requires the locks of their texts,
 * so that a summary written meanwhile is found. By conversation_messages_document.
 */
export const deleteSummariesOf = (tx: Queryable, projectId: string, documentIds: readonly string[]): Promise<unknown> =>
  tx.query(voidStatement`
    delete from conversation_summaries s using conversation_messages m, conversations c
    where m.document_id = any(${sql.array([...documentIds], 'text')}) and m.conversation_id = s.conversation_id
      and m.position <= s.up_to_position and c.id = s.conversation_id and c.project_id = ${projectId}`)

/** Copies the summary of a conversation to a fork that has all messages it covers. */
export const copySummary = (
  tx: Queryable,
  { from, to, until }: { from: string; to: string; until: number | null },
): Promise<unknown> =>
  tx.query(voidStatement`
    insert into conversation_summaries (conversation_id, up_to_position, text, tokens, agent_id, agent_version, created_at)
    select ${to}, up_to_position, text, tokens, agent_id, agent_version, created_at from conversation_summaries
    where conversation_id = ${from} and (${until}::int is null or up_to_position <= ${until}::int)`)

/** Cte that requests a summary of a conversation, unless one is requested. */
export const summaryWorkCte = (item: {
  conversation_id: string
  id: string
  agent_id: string
  agent_version: number
  history_tokens: number
}): Fragment => sql.fragment`
  summary_requested as (
    insert into conversation_summary_work (conversation_id, id, agent_id, agent_version, history_tokens)
    values (${item.conversation_id}, ${item.id}, ${item.agent_id}, ${item.agent_version}, ${item.history_tokens})
    on conflict (conversation_id) do nothing)`

const sizeRow = sql.type(z.object({ position: z.int(), bytes: z.int() }))

/** Returns the bytes of the newest messages after a position, newest first. By conversation_messages_position. */
export const listNewestSizes = (
  db: Queryable,
  conversationId: string,
  after: number,
  limit: number,
): Promise<readonly { position: number; bytes: number }[]> =>
  db.any(sizeRow`
    select m.position, coalesce(octet_length(m.history::text), octet_length(x.content), 0) as bytes
    from conversation_messages m ${messageTextJoin}
    where m.conversation_id = ${conversationId} and m.position > ${after} order by m.position desc limit ${limit}`)

const CoveredMessage = z.object({
  document_id: z.string(),
  position: z.int(),
  role: z.enum(['user', 'assistant']),
  origin: z.string().nullable(),
  author: z.string().nullable(),
  /** Null for an erased message, for a document of the project, and for an answer that the vendor refused with its question. */
  content: z.string().nullable(),
  is_document: z.boolean(),
})
/** A message as input of a summary. */
export type CoveredMessage = z.output<typeof CoveredMessage>
const coveredRow = sql.type(CoveredMessage)

/** Returns the oldest messages in a range of positions, in order. By conversation_messages_position. */
export const listOldestMessages = (
  db: Queryable,
  conversationId: string,
  { after, until, limit }: { after: number; until: number; limit: number },
): Promise<readonly CoveredMessage[]> =>
  db.any(coveredRow`
    select m.document_id, m.position, m.role, m.origin, a.name as author,
      case when d.kind = 'message' and not ${isInRefusedExchange} then x.content end as content, coalesce(d.kind <> 'message', false) as is_document
    from conversation_messages m ${messageTextJoin} left join actors a on a.id = m.actor_id
    where m.conversation_id = ${conversationId} and m.position > ${after} and m.position <= ${until}
    order by m.position limit ${limit}`)

const writtenRow = sql.type(z.object({ written: z.boolean() }))

/**
 * Writes a summary that extends `base` by messages, and returns false if the base or one of the messages has changed since
 * they were read: deleted, erased, moved, or joined by another. The texts are locked against erasure, which then deletes
 * the summary. Requires the conversation's lock.
 */
export const writeSummary = (
  tx: Queryable,
  summary: Omit<SummaryRow, 'created_at' | 'up_to_position'>,
  base: SummaryRow | null,
  messages: readonly CoveredMessage[],
): Promise<boolean> => {
  const { conversation_id } = summary
  const after = base?.up_to_position ?? -1
  const until = (messages.at(-1) as CoveredMessage).position
  const texts = messages.flatMap(({ document_id, content }) => (content === null ? [] : [document_id]))
  const isBase = base
    ? sql.fragment`exists (select from conversation_summaries s
        where s.conversation_id = ${conversation_id} and s.up_to_position = ${after} and s.text = ${base.text})`
    : sql.fragment`not exists (select from conversation_summaries s where s.conversation_id = ${conversation_id})`
  return tx.oneFirst(writtenRow`
    with texts as materialized (
      select d.id from documents d where d.id = any(${sql.array(texts, 'text')}) order by d.id for key share
    ), written as (
      insert into conversation_summaries (conversation_id, up_to_position, text, tokens, agent_id, agent_version)
      select ${conversation_id}, ${until}::int, ${summary.text}, ${summary.tokens}::int, ${summary.agent_id},
        ${summary.agent_version}::int
      where ${isBase} and (select count(*) from texts) = ${texts.length} and (
        select array_agg(m.document_id order by m.position) from conversation_messages m
        where m.conversation_id = ${conversation_id} and m.position > ${after} and m.position <= ${until})
        = ${sql.array(
          messages.map(message => message.document_id),
          'text',
        )}
      on conflict (conversation_id) do update set up_to_position = excluded.up_to_position, text = excluded.text,
        tokens = excluded.tokens, agent_id = excluded.agent_id, agent_version = excluded.agent_version,
        created_at = now()
      returning 1)
    select exists (select from written) as written`)
}
