import { z } from 'zod'
import {
  deleteMessageTexts,
  lockMessageTexts,
  messageTextJoin,
  messageTextParts,
} from '../../content/documents/message-text.ts'
import { documentKind } from '../../content/documents/model.ts'
import type { EndUser } from '../../control/retention/erasure.ts'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { pageResult } from '../../core/api/lists.ts'
import type { Context, Page } from '../../core/api/operation.ts'
import { type Fragment, jsonb, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { rememberDeletedCtes } from './deleted-messages.ts'
import { ConversationMessage, type ConversationRow, conversationKind, type MessageRow, messageEvents } from './model.ts'

const message = sql.type(ConversationMessage)

/** Columns of a message `m` with its text `x`. */
const messageColumns = sql.fragment`m.document_id, m.conversation_id, m.role, m.actor_id, m.agent_id, m.generation_id,
  m.position, x.content, m.metadata, m.created_at`
const messageTables = sql.fragment`conversation_messages m ${messageTextJoin}`

/** The order lock: whoever writes messages or turns of a conversation holds it. */
export const lockConversation = (tx: Queryable, id: string): Promise<ConversationRow | null> =>
  conversationKind.find(tx, id, true)

/** What a message says: a text of its own, or that of a document which the caller may read. */
export type MessageSource = { content: string } | { document_id: string; allow: Context['allow'] }

/** What the body of a message says; it has one of the two. */
export const messageSource = (
  body: { message?: string; document_id?: string },
  allow: Context['allow'],
): MessageSource =>
  body.document_id === undefined ? { content: body.message as string } : { document_id: body.document_id, allow }

export type MessageDraft = MessageSource & {
  role: MessageRow['role']
  actor_id: string | null
  agent_id?: string | null
  generation_id?: string | null
  metadata?: Record<string, unknown> | null
  /** Where to insert; absent or beyond the end: at the end. */
  position?: number
  idempotency_key?: string
  /** Further ctes of the statement. */
  beside?: readonly Fragment[]
}

/**
 * Adds a message under lockConversation and emits conversation_messages.created. With an idempotency key that the
 * conversation has seen, gives the first message back and does nothing.
 * Raises for a document: RESOURCE_NOT_FOUND, FORBIDDEN, NAME_CONFLICT when the conversation has it already,
 * VALIDATION_FAILED when it has no text.
 */
export async function appendMessage(
  tx: Tx,
  owner: ConversationRow,
  draft: MessageDraft,
): Promise<{ message: MessageRow; created: boolean }> {
  if (draft.idempotency_key !== undefined) {
    const first = await findMessageByKey(tx, owner.id, draft.idempotency_key)
    if (first) return { message: first, created: false }
  }
  const text = 'content' in draft ? draft.content : await takeText(tx, owner, draft)
  const row = { ...(await insertMessage(tx, owner, draft, text)), content: text }
  tx.emit(messageEvents, 'created', { id: row.document_id, project_id: owner.project_id }, { data: row })
  return { message: row, created: true }
}

const namedDocument = sql.type(documentKind.row.extend({ content: z.string().nullable(), used: z.boolean() }))

/** A document of the conversation's project with its text, kept from being deleted; by the primary keys. */
const shareDocument = (tx: Queryable, owner: ConversationRow, id: string) =>
  tx.maybeOne(namedDocument`
    select ${documentKind.columns}, case when t.status <> 'withdrawn' then x.content end as content,
      exists (select 1 from conversation_messages m where m.conversation_id = ${owner.id} and m.document_id = t.id) as used
    from documents t left join document_texts x on x.document_id = t.id
    where t.id = ${id} and t.project_id = ${owner.project_id} for key share of t`)

/** The text of the document that a new message names. */
async function takeText(
  tx: Queryable,
  owner: ConversationRow,
  { document_id, allow }: Extract<MessageSource, { document_id: string }>,
): Promise<string> {
  const row = await shareDocument(tx, owner, document_id)
  if (!row) return raise(documentKind.notFound, { meta: { id: document_id } })
  allow('documents:GetDocument', { kind: documentKind, row })
  if (row.used)
    raise('NAME_CONFLICT', {
      message: 'The conversation has a message of this document',
      meta: { field: 'document_id' },
    })
  return (
    row.content ||
    raiseInvalid({
      code: 'INVALID_STATE',
      path: 'document_id',
      message: `names a document without text (${row.status})`,
    })
  )
}

/** By conversation_messages_idempotency. */
export const findMessageByKey = (tx: Queryable, conversationId: string, key: string): Promise<MessageRow | null> =>
  tx.maybeOne(message`
    select ${messageColumns} from ${messageTables}
    where m.conversation_id = ${conversationId} and m.idempotency_key = ${key}`)

/**
 * Moves the message at a position and all later ones up by one when the position is taken. What the running turn has
 * seen moves along, so that its reply still lands behind it.
 */
const makeRoom = (conversationId: string, position: number): Fragment[] => [
  sql.fragment`taken as (
    select 1 from conversation_messages where conversation_id = ${conversationId} and position = ${position})`,
  sql.fragment`seen as (
    update conversation_turns set seen_position = seen_position + 1
    where conversation_id = ${conversationId} and state = 'running' and seen_position >= ${position}
      and exists (select 1 from taken))`,
  sql.fragment`moved as (
    update conversation_messages set position = position + 1
    where conversation_id = ${conversationId} and position >= ${position} and exists (select 1 from taken))`,
]

/** The text unless a document has it, the message behind the last or at its position, and the count, in one statement. */
const insertMessage = (
  tx: Queryable,
  owner: ConversationRow,
  draft: MessageDraft,
  text: string,
): Promise<MessageRow> => {
  const named = 'document_id' in draft
  const documentId = named ? draft.document_id : newId(documentKind.prefix)
  const position: Fragment =
    draft.position === undefined ? sql.fragment`place.next` : sql.fragment`least(${draft.position}::int, place.next)`
  const parts = [
    sql.fragment`place as (
      select coalesce(max(position) + 1, 0) as next from conversation_messages where conversation_id = ${owner.id})`,
    ...(draft.position === undefined ? [] : makeRoom(owner.id, draft.position)),
    ...(named
      ? []
      : messageTextParts({
          document_id: documentId,
          project_id: owner.project_id,
          conversation_id: owner.id,
          text,
        })),
    sql.fragment`counted as (
      update conversations set message_count = message_count + 1, updated_at = now() where id = ${owner.id})`,
    sql.fragment`added as (
      insert into conversation_messages (conversation_id, document_id, position, role, actor_id, agent_id,
        generation_id, metadata, idempotency_key)
      select ${owner.id}, ${documentId}, ${position}, ${draft.role}, ${draft.actor_id}, ${draft.agent_id ?? null},
        ${draft.generation_id ?? null}, ${jsonb(draft.metadata)}, ${draft.idempotency_key ?? null}
      from place
      returning *)`,
    ...(draft.beside ?? []),
  ]
  return tx.one(message`
    with ${sql.join(parts, sql.fragment`, `)}
    select document_id, conversation_id, role, actor_id, agent_id, generation_id, position, null as content, metadata,
      created_at
    from added`)
}

export type MessageFilter = {
  role?: readonly MessageRow['role'][]
  actor_id?: string
  after_position?: number
  before_position?: number
}

/** A page of messages in order, with their texts. */
export const listMessages = (context: { db: Queryable; page: Page }, conversationId: string, filter: MessageFilter) =>
  messagePage<MessageRow>(context, conversationId, {
    columns: messageColumns,
    from: messageTables,
    filters: [
      filter.role && sql.fragment`m.role = any(${sql.array([...filter.role], 'text')})`,
      filter.actor_id !== undefined && sql.fragment`m.actor_id = ${filter.actor_id}`,
      filter.after_position !== undefined && sql.fragment`m.position > ${filter.after_position}`,
      filter.before_position !== undefined && sql.fragment`m.position < ${filter.before_position}`,
    ],
  })

/**
 * A page of messages `m` in order; conversation_messages_position serves it. How many there are is written with them, under
 * lockConversation.
 */
export const messagePage = <Row>(
  context: { db: Queryable; page: Page },
  conversationId: string,
  query: Pick<Parameters<typeof pageResult<Row>>[1], 'columns' | 'from' | 'filters'>,
) =>
  pageResult<Row>(context, {
    ...query,
    rows: sql.fragment`m.conversation_id = ${conversationId}`,
    kept: sql.fragment`coalesce((select message_count from conversations where id = ${conversationId}), 0)`,
    time: sql.fragment`m.created_at`,
    order: sql.fragment`m.position`,
    // A message has no id of its own.
    key: sql.fragment`m.ctid`,
    present: row => row,
  })

/** The next messages behind a position, in order; conversation_messages_position serves it. */
export const messagesAfter = (
  db: Queryable,
  conversationId: string,
  position: number,
  limit: number,
): Promise<readonly MessageRow[]> =>
  db.any(message`
    select ${messageColumns} from ${messageTables}
    where m.conversation_id = ${conversationId} and m.position > ${position} order by m.position limit ${limit}`)

export const findMessage = (db: Queryable, conversationId: string, documentId: string): Promise<MessageRow | null> =>
  db.maybeOne(message`
    select ${messageColumns} from ${messageTables}
    where m.conversation_id = ${conversationId} and m.document_id = ${documentId}`)

export const setMessageMetadata = (
  db: Queryable,
  conversationId: string,
  documentId: string,
  metadata: Record<string, unknown> | null,
): Promise<MessageRow | null> =>
  db.maybeOne(message`
    with m as (
      update conversation_messages set metadata = ${jsonb(metadata)}
      where conversation_id = ${conversationId} and document_id = ${documentId} returning *
    )
    select ${messageColumns} from m ${messageTextJoin}`)

/**
 * Removes one message under lockConversation, with its text when no other message uses it; the rest keep their
 * positions. Emits conversation_messages.deleted; false when there is no such message.
 */
export async function removeMessage(tx: Tx, owner: ConversationRow, documentId: string): Promise<boolean> {
  const row = await findMessage(tx, owner.id, documentId)
  if (!row) return false
  const texts = await lockMessageTexts(tx, sql.fragment`select ${documentId}::text`)
  await tx.query(voidStatement`
    with gone as (
      delete from conversation_messages where conversation_id = ${owner.id} and document_id = ${documentId}
      returning actor_id, document_id),
    ${rememberDeletedCtes(owner)}
    update conversations set message_count = message_count - 1, updated_at = now() where id = ${owner.id}`)
  await deleteMessageTexts(tx, texts, inUse)
  tx.emit(messageEvents, 'deleted', { id: documentId, project_id: owner.project_id }, { data: row })
  return true
}

/**
 * Removes a conversation under lockConversation: its turns, its messages and the texts that no other message uses.
 * Emits conversations.deleted. The turns must have been cancelled before (turns/mailbox, clearMailbox).
 */
export async function removeConversation(tx: Tx, owner: ConversationRow): Promise<void> {
  const texts = await lockMessageTexts(
    tx,
    sql.fragment`select m.document_id from conversation_messages m where m.conversation_id = ${owner.id}`,
  )
  await tx.query(voidStatement`
    with gone as (
      delete from conversation_messages where conversation_id = ${owner.id} returning actor_id, document_id),
    ${rememberDeletedCtes(owner)}
    delete from conversations where id = ${owner.id}`)
  await deleteMessageTexts(tx, texts, inUse)
  tx.emit(conversationKind, 'deleted', owner)
}

/** Takes the calls of replies away from them. By conversation_messages_generation. */
export const eraseHistory = async (tx: Queryable, generationIds: readonly string[]): Promise<number> =>
  (
    await tx.query(voidStatement`
      update conversation_messages set history = null
      where generation_id = any(${sql.array([...generationIds], 'text')}) and history is not null`)
  ).rowCount

const named = sql.type(z.object({ document_id: z.string() }))

/**
 * Messages that keep content of an end user: those of its own conversations, and those that it wrote elsewhere; up to a time,
 * and replies of turns from before that. Indexes conversations_actor, conversation_messages_actor.
 */
export const messagesOfEndUser = (
  db: Queryable,
  endUser: Pick<EndUser, 'id' | 'project_id' | 'ownConversations'>,
  until: string,
  limit: number,
): Promise<readonly string[]> =>
  db.anyFirst(named`
    select m.document_id from (
      select * from conversation_messages where conversation_id in (${endUser.ownConversations})
      union all
      select * from conversation_messages where actor_id = ${endUser.id}) m
    left join documents d on d.id = m.document_id and d.kind = 'message'
    left join generations g on g.id = m.generation_id
    where (d.id is not null or m.metadata is not null or m.history is not null)
      and least(m.created_at, g.created_at) <= ${until}::timestamptz
    limit ${limit}`)

/** Takes from messages what is theirs beside their texts; returns how many there are. By conversation_messages_document. */
export const eraseMessages = async (
  tx: Queryable,
  projectId: string,
  documentIds: readonly string[],
): Promise<number> =>
  (
    await tx.query(voidStatement`
      update conversation_messages m set metadata = null, history = null
      from conversations c where c.id = m.conversation_id and c.project_id = ${projectId}
        and m.document_id = any(${sql.array([...documentIds], 'text')})`)
  ).rowCount

/**
 * Whether a message uses a text, asked under the lock of the text: of two forks that are deleted at once the second one
 * sees that what they share is no longer used. By conversation_messages_document.
 */
const inUse = sql.fragment`exists (select 1 from conversation_messages m where m.document_id = d.id)`
