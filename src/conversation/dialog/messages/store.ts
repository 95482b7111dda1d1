import { z } from 'zod'
import {
  deleteMessageTexts,
  lockMessageTexts,
  messageTextJoin,
  messageTextParts,
} from '#content/documents/message-text.ts'
import { documentKind } from '#content/documents/model.ts'
import type { EndUser } from '#control/retention/erasure.ts'
import { pageResult } from '#core/api/lists.ts'
import type { Context, Page } from '#core/api/operation.ts'
import { type RecordedFailure, raise, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import { sendAhead } from '#core/db/commit-piggyback.ts'
import { type Fragment, jsonb, type Queryable, rowFromJson, sql, voidStatement } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { Annotation } from '#execution/providers/model-messages.ts'
import { deletedSummaryCte } from '../summaries/store.ts'
import { recordDeletedCtes } from './deleted-messages.ts'
import { addSessionFrame, SESSION_CHANNEL } from './frames.ts'
import { ConversationMessage, type ConversationRow, conversationKind, type MessageRow, messageEvents } from './model.ts'
import { type CheckedParts, lockCheckedFiles } from './parts.ts'
import { isRefusedMessage } from './refused.ts'

const messageRow = sql.type(ConversationMessage)

/** Expression for the origin of a message `m`. */
export const messageOrigin = sql.fragment`coalesce(m.origin, case m.role when 'user' then 'end_user' else 'agent' end)`

/** Expression for the parts of a message `m`, of which deleted files are marked. By the primary key of files. */
export const messageParts = sql.fragment`case when m.parts is not null then (
  select jsonb_agg(case when p.part -> 'file_id' is null or exists (select from files f where f.id = p.part ->> 'file_id')
    then p.part else jsonb_build_object('type', p.part -> 'type', 'file_id', p.part -> 'file_id', 'gone', true) end order by p.n)
  from jsonb_array_elements(m.parts) with ordinality as p (part, n)) end`

/** Columns of a message `m` with its text `x`. */
const messageColumns = sql.fragment`m.document_id, m.conversation_id, m.role, ${messageOrigin} as origin, m.actor_id, m.agent_id, m.generation_id,
  m.position, x.content, ${messageParts} as parts, m.metadata, ${isRefusedMessage} as refused,
  (select g.output -> 'annotations' from generations g where g.id = m.generation_id) as annotations, m.created_at`
const messageTables = sql.fragment`conversation_messages m ${messageTextJoin}`

/** Locks a conversation; writes of its messages and turns require this lock. */
export const lockConversation = (tx: Queryable, id: string): Promise<ConversationRow | null> =>
  conversationKind.find(tx, id, true)

/**
 * Locks a conversation as the first statement of a transaction, in the round trip of the next one. That one sees commits
 * during the wait for the lock, unlike the statement that waits.
 */
export const lockConversationAhead = (tx: Queryable, id: string): Promise<unknown> =>
  sendAhead(() => tx.query(voidStatement`select from conversations where id = ${id} for update`))

/**
 * Ctes that lock a conversation (`conversation`) and its session (`session`), with the versions of their rows. If the lock was
 * awaited, PostgreSQL returns the new versions, but reads all other rows without the commits of that time.
 */
export const lockedRowsCtes = (conversationId: string): Fragment => sql.fragment`
  conversation as materialized (
    select ${conversationKind.columns}, t.xmin as version from conversations t where t.id = ${conversationId} for update of t
  ), session as materialized (
    select s.id, s.xmin as version from sessions s where s.id = (select session_id from conversation) for no key update of s
  )`

/** Condition that the locked rows have not changed since the statement began. */
export const areRowsUnchanged = (conversationId: string): Fragment => sql.fragment`(
  exists (select from conversation l join conversations c on c.id = ${conversationId} and c.xmin = l.version)
  and not exists (select from session l join sessions s on s.id = l.id where s.xmin is distinct from l.version))`

/** What a new message depends on, read under the conversation's lock. */
export const MessagePlace = z.object({
  /** After all messages. */
  next_position: z.int(),
  /** Time of the transaction. */
  now: z.string(),
})
export type MessagePlace = z.output<typeof MessagePlace>

/** Columns of `MessagePlace`. By conversation_messages_position. */
export const messagePlace = (conversationId: Fragment | string): Fragment => sql.fragment`
  (select coalesce(max(position) + 1, 0) from conversation_messages where conversation_id = ${conversationId}) as next_position,
  now()::timestamptz(3) as now`

const placeRow = sql.type(MessagePlace.extend({ conversation: z.custom<object>(), unchanged: z.boolean() }))

/**
 * Locks a conversation and returns it with the place of a new message; null if it was deleted. Reads again if it changed while
 * the lock was awaited. By the primary keys.
 */
export async function lockConversationWithPlace(
  tx: Queryable,
  id: string,
): Promise<{ conversation: ConversationRow; place: MessagePlace } | null> {
  const read = (ctes: Fragment, conversation: Fragment, unchanged: Fragment) =>
    tx.maybeOne(placeRow`
      ${ctes} select ${messagePlace(id)}, to_jsonb(c) - 'version' as conversation, ${unchanged} as unchanged from ${conversation} c`)
  const locked = await read(sql.fragment`with ${lockedRowsCtes(id)}`, sql.fragment`conversation`, areRowsUnchanged(id))
  const current = sql.fragment`(select ${conversationKind.columns} from conversations t where t.id = ${id})`
  const found = locked?.unchanged === false ? await read(sql.fragment``, current, sql.fragment`true`) : locked
  if (!found) return null
  const { conversation, next_position, now } = found
  return { conversation: rowFromJson(conversation) as ConversationRow, place: { next_position, now } }
}

/** Content of a message: a text, checked parts, or a document that the caller may read. */
export type MessageSource =
  | { content: string }
  | { checked: CheckedParts }
  | { document_id: string; allow: Context['allow'] }

/**
 * Returns the source in the body of a message, which has exactly one.
 * @param checked result of checkParts for a body with parts
 */
export function messageSource(
  body: { message?: string; document_id?: string },
  allow: Context['allow'],
  checked: CheckedParts | null,
): MessageSource {
  if (checked) return { checked }
  return body.document_id === undefined ? { content: body.message as string } : { document_id: body.document_id, allow }
}

export type MessageDraft = MessageSource & {
  role: MessageRow['role']
  /** Default by role: `end_user` for user messages, `agent` for the others. */
  origin?: MessageRow['origin']
  actor_id: string | null
  agent_id?: string | null
  /** Whether the platform writes it, in a form for the model that no other text has. */
  note?: boolean
  /** ID of the user who wrote an operator message. */
  operator_id?: string
  generation_id?: string | null
  metadata?: Record<string, unknown> | null
  /** Messages of a reply, which later turns read in place of its text: tool calls, or none of a refused answer. */
  history?: readonly object[] | null
  /** Pages that the reply cites, which its generation has. */
  annotations?: readonly Annotation[] | null
  /** Position at which to insert the message; default and maximum: the end. */
  position?: number
  idempotency_key?: string
  /** Returns the turn that the message requests, for repeats of its key. Called when a message is written with the outbox. */
  requestedTurn?: () => string | null
  /** Bytes of a token in the request of the turn that replies; null or absent leaves the stored value. */
  bytes_per_token?: number | null
  /** Further ctes of the insert. */
  extraCtes?: readonly Fragment[]
}

/**
 * Appends or inserts a message and emits conversation_messages.created. Returns the first message, unchanged, for an
 * idempotency key used before in the conversation. Requires lockConversation.
 * @param place if given, a plain text is written with the outbox (`isWritten` is false), of which no other part may write the
 *   conversation's row
 * @throws for a document: RESOURCE_NOT_FOUND, FORBIDDEN, NAME_CONFLICT if the conversation has it already,
 *   VALIDATION_FAILED if it has no text; for parts: FILE_NOT_FOUND
 */
export async function appendMessage(
  tx: Tx,
  owner: ConversationRow,
  draft: MessageDraft,
  place?: MessagePlace,
): Promise<{ message: MessageRow; created: boolean; isWritten: boolean }> {
  if (draft.idempotency_key !== undefined) {
    const first = await findMessageByKey(tx, owner.id, draft.idempotency_key, draft.operator_id)
    if (first) return { message: first, created: false, isWritten: true }
  }
  const text =
    'document_id' in draft
      ? await requireDocumentText(tx, owner, draft)
      : 'checked' in draft
        ? draft.checked.content
        : draft.content
  if ('checked' in draft) await lockCheckedFiles(tx, draft.checked)
  const isWithOutbox = place && isPlainText(draft) && !owner.streamed
  const row = isWithOutbox
    ? addMessage(tx, owner, draft, text, place)
    : { ...(await insertMessage(tx, owner, draft, text)), content: text }
  tx.emit(messageEvents, 'created', { id: row.document_id, project_id: owner.project_id }, { data: row })
  addSessionFrame(tx, owner, { event: 'message', document_id: row.document_id })
  return { message: row, created: true, isWritten: !isWithOutbox }
}

const documentRow = sql.type(documentKind.row.extend({ content: z.string().nullable(), used: z.boolean() }))

/**
 * Returns a document of the conversation's project with its text, with a lock against its deletion. By the primary
 * keys.
 */
const findDocument = (tx: Queryable, owner: ConversationRow, id: string) =>
  tx.maybeOne(documentRow`
    select ${documentKind.columns}, case when t.status <> 'withdrawn' then x.content end as content,
      exists (select 1 from conversation_messages m where m.conversation_id = ${owner.id} and m.document_id = t.id) as used
    from documents t left join document_texts x on x.document_id = t.id
    where t.id = ${id} and t.project_id = ${owner.project_id} for key share of t`)

/** Returns the text of a message's document. */
async function requireDocumentText(
  tx: Queryable,
  owner: ConversationRow,
  { document_id, allow }: Extract<MessageSource, { document_id: string }>,
): Promise<string> {
  const row = await findDocument(tx, owner, document_id)
  if (!row) return raise(documentKind.notFound, { meta: { id: document_id } })
  allow('documents:GetDocument', { kind: documentKind, row })
  if (row.used)
    raise('NAME_CONFLICT', {
      message: 'The conversation already has a message with this document',
      meta: { field: 'document_id' },
    })
  return (
    row.content ||
    raiseInvalid({
      code: 'INVALID_STATE',
      path: 'document_id',
      message: `has no text (status ${row.status})`,
    })
  )
}

/**
 * Returns the message with an idempotency key, of an operator or of all other callers. By
 * conversation_messages_idempotency.
 */
export const findMessageByKey = (
  tx: Queryable,
  conversationId: string,
  key: string,
  operatorId: string | null = null,
): Promise<MessageRow | null> =>
  tx.maybeOne(messageRow`
    select ${messageColumns} from ${messageTables}
    where m.conversation_id = ${conversationId} and m.idempotency_key = ${key}
      and m.operator_id is not distinct from ${operatorId}`)

/**
 * Ctes that move the messages from a position on up by one if the position is taken. The position seen by the running
 * turn moves too, so that its reply is still inserted after it.
 */
const shiftMessagesCtes = (conversationId: string, position: number): Fragment[] => [
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

/** Ctes that insert a message (`added`), its text unless it is a document, and update the message count. */
function messageCtes(
  owner: ConversationRow,
  draft: MessageDraft,
  message: { document_id: string; text: string; position: Fragment },
): Fragment[] {
  const isDocument = 'document_id' in draft
  const { document_id, text, position } = message
  const { parts = null, files = [] } = 'checked' in draft ? draft.checked : {}
  const fileIds =
    files.length > 0
      ? sql.array(
          files.map(file => file.id),
          'text',
        )
      : sql.fragment`null::text[]`
  const measured =
    draft.bytes_per_token == null ? sql.fragment`` : sql.fragment`, bytes_per_token = ${draft.bytes_per_token}`
  return [
    ...(isDocument
      ? []
      : messageTextParts({ document_id, project_id: owner.project_id, conversation_id: owner.id, text })),
    sql.fragment`counted as (
      update conversations set message_count = message_count + 1, updated_at = now()${measured}
      where id = ${owner.id})`,
    sql.fragment`added as (
      insert into conversation_messages (conversation_id, document_id, position, role, origin, actor_id, agent_id,
        operator_id, generation_id, parts, file_ids, metadata, history, idempotency_key, requested_generation_id, note)
      select ${owner.id}, ${document_id}, ${position}, ${draft.role}, ${originOf(draft)}, ${draft.actor_id}, ${draft.agent_id ?? null},
        ${draft.operator_id ?? null}, ${draft.generation_id ?? null}, ${jsonb(parts)}, ${fileIds}, ${jsonb(draft.metadata)}, ${jsonb(draft.history)}, ${draft.idempotency_key ?? null},
        ${draft.requestedTurn?.() ?? null}, ${draft.note ?? false}
      returning *)`,
    ...(draft.extraCtes ?? []),
  ]
}

const originOf = ({ origin, role }: MessageDraft): MessageRow['origin'] =>
  origin ?? (role === 'user' ? 'end_user' : 'agent')

/** Inserts a message in one statement. */
const insertMessage = (
  tx: Queryable,
  owner: ConversationRow,
  draft: MessageDraft,
  text: string,
): Promise<MessageRow> => {
  const document_id = 'document_id' in draft ? draft.document_id : newId(documentKind.prefix)
  const next = sql.fragment`(select next from place)`
  const position = draft.position === undefined ? next : sql.fragment`least(${draft.position}::int, ${next})`
  const ctes = [
    sql.fragment`place as (
      select coalesce(max(position) + 1, 0) as next from conversation_messages where conversation_id = ${owner.id})`,
    ...(draft.position === undefined
      ? []
      : [
          ...shiftMessagesCtes(owner.id, draft.position),
          deletedSummaryCte(owner.id, sql.fragment`${draft.position}::int`),
        ]),
    ...messageCtes(owner, draft, { document_id, text, position }),
  ]
  return tx.one(messageRow`
    with ${sql.join(ctes, sql.fragment`, `)}
    select document_id, conversation_id, role, origin, actor_id, agent_id, generation_id, position, null as content,
      parts, metadata, ${isRefusedMessage} as refused, ${jsonb(draft.annotations ?? null)} as annotations, created_at
    from added m`)
}

/** Whether a message has only a text: others are returned with the order of keys of jsonb. */
const isPlainText = (draft: MessageDraft): boolean =>
  'content' in draft && draft.metadata == null && (draft.annotations ?? []).length === 0

/** Inserts a plain text with the outbox. Returns the message as it will be stored. */
function addMessage(
  tx: Tx,
  owner: ConversationRow,
  draft: MessageDraft,
  text: string,
  { next_position, now }: MessagePlace,
): MessageRow {
  const document_id = newId(documentKind.prefix)
  const position = Math.min(draft.position ?? next_position, next_position)
  tx.alongside(() => [
    ...(position === next_position
      ? []
      : [...shiftMessagesCtes(owner.id, position), deletedSummaryCte(owner.id, sql.fragment`${position}::int`)]),
    ...messageCtes(owner, draft, { document_id, text, position: sql.fragment`${position}::int` }),
  ])
  return {
    document_id,
    conversation_id: owner.id,
    role: draft.role,
    origin: originOf(draft),
    actor_id: draft.actor_id,
    agent_id: draft.agent_id ?? null,
    generation_id: draft.generation_id ?? null,
    position,
    content: text,
    parts: null,
    metadata: null,
    refused: draft.history?.length === 0,
    annotations: draft.annotations ? [] : null,
    created_at: now,
  }
}

export type MessageFilter = {
  role?: readonly MessageRow['role'][]
  actor_id?: string
  after_position?: number
  before_position?: number
}

/** Returns a page of messages in order, with their texts. */
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

/** Returns a page of messages `m` in order, with the stored message count. By conversation_messages_position. */
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
    // A message has no separate id.
    key: sql.fragment`m.ctid`,
    present: row => row,
  })

const descriptionRow = sql.type(z.object({ text: z.string().nullable() }))

/** Returns the description of a file of a message; null without one. Primary key. */
export const findMediaDescription = (
  db: Queryable,
  conversationId: string,
  documentId: string,
  fileId: string,
): Promise<string | null> =>
  db.maybeOneFirst(descriptionRow`
    select media_descriptions ->> ${fileId} as text from conversation_messages
    where conversation_id = ${conversationId} and document_id = ${documentId}`)

/** Stores the description of an image of a message. Messages that share the text of a fork keep their own. */
export const setMediaDescription = (
  db: Queryable,
  conversationId: string,
  documentId: string,
  description: { file_id: string; text: string },
): Promise<unknown> =>
  db.query(voidStatement`
    update conversation_messages
    set media_descriptions = coalesce(media_descriptions, '{}') || ${jsonb({ [description.file_id]: description.text })}
    where conversation_id = ${conversationId} and document_id = ${documentId} and parts is not null`)

/** Returns the next messages after a position, in order. By conversation_messages_position. */
export const messagesAfter = (
  db: Queryable,
  conversationId: string,
  position: number,
  limit: number,
): Promise<readonly MessageRow[]> =>
  db.any(messageRow`
    select ${messageColumns} from ${messageTables}
    where m.conversation_id = ${conversationId} and m.position > ${position} order by m.position limit ${limit}`)

export const findMessage = (db: Queryable, conversationId: string, documentId: string): Promise<MessageRow | null> =>
  db.maybeOne(messageRow`
    select ${messageColumns} from ${messageTables}
    where m.conversation_id = ${conversationId} and m.document_id = ${documentId}`)

/** Copies the client's ids of messages to a fork, by which the client's list is compared with it. */
export const copyClientIds = (db: Queryable, from: string, to: string): Promise<unknown> =>
  db.query(voidStatement`
    update conversation_messages copy set idempotency_key = m.idempotency_key from conversation_messages m
    where m.conversation_id = ${from} and copy.conversation_id = ${to} and copy.document_id = m.document_id
      and m.idempotency_key is not null and m.operator_id is null`)

export async function setMessageMetadata(
  tx: Tx,
  owner: ConversationRow,
  documentId: string,
  metadata: Record<string, unknown> | null,
): Promise<MessageRow | null> {
  const message = await tx.maybeOne(messageRow`
    with m as (
      update conversation_messages set metadata = ${jsonb(metadata)}
      where conversation_id = ${owner.id} and document_id = ${documentId} returning *
    )
    select ${messageColumns} from m ${messageTextJoin}`)
  if (message) addSessionFrame(tx, owner, { event: 'message_updated', document_id: documentId })
  return message
}

/**
 * Deletes a message, and its text unless another message uses it, and emits conversation_messages.deleted. Other
 * messages keep their positions. Returns false if the message does not exist. Requires lockConversation.
 */
export async function removeMessage(tx: Tx, owner: ConversationRow, documentId: string): Promise<boolean> {
  const row = await findMessage(tx, owner.id, documentId)
  if (!row) return false
  const texts = await lockMessageTexts(tx, sql.fragment`select ${documentId}::text`)
  await tx.query(voidStatement`
    with gone as (
      delete from conversation_messages where conversation_id = ${owner.id} and document_id = ${documentId}
      returning actor_id, document_id),
    ${deletedSummaryCte(owner.id, sql.fragment`${row.position}::int`)},
    ${recordDeletedCtes(owner)}
    update conversations set message_count = message_count - 1, updated_at = now() where id = ${owner.id}`)
  await deleteMessageTexts(tx, texts, isTextInUse)
  tx.emit(messageEvents, 'deleted', { id: documentId, project_id: owner.project_id }, { data: row })
  addSessionFrame(tx, owner, { event: 'message_deleted', document_id: documentId, data: { origin: row.origin } })
  return true
}

/**
 * Deletes a conversation with its turns, its messages and the texts that no other message uses, and emits
 * conversations.deleted. Requires lockConversation; open turns must have been ended (clearMailbox).
 */
export async function removeConversation(tx: Tx, owner: ConversationRow): Promise<void> {
  const texts = await lockMessageTexts(
    tx,
    sql.fragment`select m.document_id from conversation_messages m where m.conversation_id = ${owner.id}`,
  )
  await tx.query(voidStatement`
    with gone as (
      delete from conversation_messages where conversation_id = ${owner.id} returning actor_id, document_id),
    ${recordDeletedCtes(owner)}
    delete from conversations where id = ${owner.id}`)
  await deleteMessageTexts(tx, texts, isTextInUse)
  tx.emit(conversationKind, 'deleted', owner)
  if (owner.session_id !== null && owner.streamed) tx.notify(SESSION_CHANNEL, owner.session_id)
}

/** Erases the tool calls of replies and returns the number of replies. By conversation_messages_generation. */
export const eraseHistory = async (tx: Queryable, generationIds: readonly string[]): Promise<number> =>
  (
    await tx.query(voidStatement`
      update conversation_messages set history = null
      where generation_id = any(${sql.array([...generationIds], 'text')}) and history <> '[]'`)
  ).rowCount

const documentIdRow = sql.type(z.object({ document_id: z.string() }))

/**
 * Returns messages with content of an end user: in its own conversations, and written by it elsewhere, created until a
 * time or by a turn created until then. By conversations_actor and conversation_messages_actor.
 */
export const listMessagesOfEndUser = (
  db: Queryable,
  endUser: Pick<EndUser, 'id' | 'project_id' | 'ownConversations'>,
  until: string,
  limit: number,
): Promise<readonly string[]> =>
  db.anyFirst(documentIdRow`
    select m.document_id from (
      select * from conversation_messages where conversation_id in (${endUser.ownConversations})
      union all
      select * from conversation_messages where actor_id = ${endUser.id}) m
    left join documents d on d.id = m.document_id and d.kind = 'message'
    left join generations g on g.id = m.generation_id
    where (d.id is not null or m.metadata is not null or m.history is not null or m.parts is not null)
      and least(m.created_at, g.created_at) <= ${until}::timestamptz
    limit ${limit}`)

/**
 * Erases the fields of messages other than their texts and returns the number of messages. By
 * conversation_messages_document.
 */
export const eraseMessages = async (
  tx: Queryable,
  projectId: string,
  documentIds: readonly string[],
): Promise<number> =>
  (
    await tx.query(voidStatement`
      update conversation_messages m
      set metadata = null, history = case when history = '[]' then history end, parts = null, media_descriptions = null, file_ids = null
      from conversations c where c.id = m.conversation_id and c.project_id = ${projectId}
        and m.document_id = any(${sql.array([...documentIds], 'text')})`)
  ).rowCount

/**
 * Condition that a message uses a text `d`, evaluated under the lock of the text: of two forks that are deleted
 * concurrently, the second finds that the shared text is unused. By conversation_messages_document.
 */
const isTextInUse = sql.fragment`exists (select 1 from conversation_messages m where m.document_id = d.id)`

/** Stores why the last summary of a conversation failed; null clears it. */
export const setSummaryError = (tx: Queryable, id: string, error: RecordedFailure | null): Promise<unknown> =>
  tx.query(voidStatement`update conversations set summary_error = ${jsonb(error)} where id = ${id}`)
