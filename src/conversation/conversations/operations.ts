import { Readable } from 'node:stream'
import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { kinds } from '../../core/api/kind.ts'
import { anyOf, listTable, pageOf, tagCondition, tagFilter, textFilter } from '../../core/api/lists.ts'
import { answer, type Context, itemOperation, type Operation, operation, streamed } from '../../core/api/operation.ts'
import { replacedTags, tagOperations } from '../../core/api/tags.ts'
import { type Queryable, sql, substring } from '../../core/db/sql.ts'
import { WaitQuery } from '../../execution/generations/answer.ts'
import { actorKind } from '../actors/model.ts'
import { generate, openSession } from '../turns/generate.ts'
import { sessionHooks } from '../turns/hooks.ts'
import { clearMailbox } from '../turns/mailbox.ts'
import { AcceptedTurn, TurnResult } from '../turns/result.ts'
import { gone } from '../turns/source.ts'
import {
  CONVERSATION_STATUSES,
  Conversation,
  ConversationInput,
  ConversationMessage,
  ConversationPatch,
  type ConversationRow,
  conversationKind,
  GenerateMessageInput,
  MESSAGE_ROLES,
  MessageInput,
  MessagePatch,
  type MessageRow,
  presentMessage,
} from './model.ts'
import {
  appendMessage,
  findMessageByKey,
  insertConversation,
  listMessages as listRows,
  lockConversation,
  messagesAfter,
  removeConversation,
  removeMessage,
  saidBy,
  setConversationTags,
  setMessageMetadata,
  updateConversation as updateRow,
} from './store.ts'

const tag = 'Conversations'
const path = '/conversations/{conversation_id}'

/** The row under its lock. Raises RESOURCE_NOT_FOUND when it was deleted since it was found. */
async function locked(tx: Queryable, id: string): Promise<ConversationRow> {
  const row = await lockConversation(tx, id)
  if (!row) raise(conversationKind.notFound, { meta: { id } })
  return row
}

/** Raises ACTOR_NOT_FOUND unless the actor is one of the project's; it stays until the transaction ends. */
async function checkActor(tx: Queryable, projectId: string, actorId: string | null | undefined) {
  if (actorId != null && !(await actorKind.reference(tx, actorId, projectId)))
    raise('ACTOR_NOT_FOUND', { meta: { id: actorId } })
}

const createConversation = operation({
  id: 'createConversation',
  method: 'post',
  path: '/conversations',
  summary: 'Create a conversation',
  tag,
  action: 'conversations:CreateConversation',
  creates: conversationKind,
  body: ConversationInput,
  answers: { 201: Conversation },
  raises: ['ACTOR_NOT_FOUND'],
  async run({ body, project, tx }) {
    const project_id = project as string
    await checkActor(tx, project_id, body.actor_id)
    const record = conversationKind.present(
      await insertConversation(tx, {
        project_id,
        name: body.name ?? null,
        status: body.status,
        actor_id: body.actor_id ?? null,
        session_id: null,
        tags: body.tags ?? {},
      }),
    )
    tx.emit(
      conversationKind,
      'created',
      { id: (record as { id: string }).id, project_id: project_id },
      { data: record },
    )
    return record
  },
})

const listConversations = operation({
  id: 'listConversations',
  method: 'get',
  path: '/conversations',
  summary: 'List conversations',
  tag,
  action: 'conversations:ListConversations',
  lists: conversationKind,
  query: z.object({
    actor_id: textFilter.describe('Authored at least one message in it'),
    owner_actor_id: textFilter,
    status: anyOf(CONVERSATION_STATUSES),
    name: textFilter,
    tags: tagFilter,
  }),
  answers: { 200: pageOf(Conversation) },
  // conversations_project serves the order; conversations_actor, conversations_tags and conversation_messages_actor filters.
  run: context => {
    const { query } = context
    return listTable<ConversationRow>(context, {
      table: 'conversations',
      tags: true,
      where: [
        query.actor_id !== undefined &&
          sql.fragment`exists (select 1 from conversation_messages m
            where m.actor_id = ${query.actor_id} and m.conversation_id = t.id)`,
        query.owner_actor_id !== undefined && sql.fragment`t.actor_id = ${query.owner_actor_id}`,
        query.status && sql.fragment`t.status = any(${sql.array([...query.status], 'text')})`,
        query.name !== undefined && sql.fragment`t.name ilike ${substring(query.name)}`,
        tagCondition(sql.fragment`t.tags`, query.tags),
      ],
      present: conversationKind.present,
    })
  },
})

const getConversation = itemOperation(conversationKind, {
  id: 'getConversation',
  method: 'get',
  path,
  summary: 'Read one conversation',
  tag,
  action: 'conversations:GetConversation',
  answers: { 200: Conversation },
  run: async ({ resource }) => conversationKind.present(resource),
})

const updateConversation = itemOperation(conversationKind, {
  id: 'updateConversation',
  method: 'patch',
  path,
  summary: 'Change a conversation',
  tag,
  action: 'conversations:UpdateConversation',
  body: ConversationPatch,
  answers: { 200: Conversation },
  async run({ body, resource, tx, allowTags }) {
    const stored = await locked(tx, resource.id)
    const next = { ...stored }
    if (body.name !== undefined) next.name = body.name
    if (body.status !== undefined) next.status = body.status
    if (body.tags !== undefined) {
      next.tags = replacedTags(stored.tags, body.tags)
      allowTags(next.tags)
    }
    const record = conversationKind.present(await updateRow(tx, next))
    tx.emit(
      conversationKind,
      'updated',
      { id: (record as { id: string }).id, project_id: stored.project_id },
      { data: record },
    )
    return record
  },
})

const deleteConversation = itemOperation(conversationKind, {
  id: 'deleteConversation',
  method: 'delete',
  path,
  summary: 'Delete a conversation with its messages, and the session it belongs to',
  tag,
  action: 'conversations:DeleteConversation',
  alsoActions: ['sessions:DeleteSession'],
  answers: { 204: null },
  async run({ resource, tx, services, allow }) {
    const stored = await locked(tx, resource.id)
    const session =
      stored.session_id === null ? null : ((await sessionHooks.only()?.load(tx, stored.session_id)) ?? null)
    if (session) allow('sessions:DeleteSession', { kind: kinds.get('session'), row: session.row })
    await clearMailbox(tx, services, stored, gone(stored.id))
    if (session) await sessionHooks.only()?.remove(tx, session.id)
    await removeConversation(tx, stored)
  },
})

const position = z
  .string()
  .regex(/^\d{1,9}$/, 'must be an integer of at least 0')
  .transform(Number)

const listMessages = itemOperation(conversationKind, {
  id: 'listConversationMessages',
  method: 'get',
  path: `${path}/messages`,
  summary: 'List the messages of a conversation in order',
  tag,
  action: 'conversations:GetConversation',
  paged: true,
  query: z.object({
    role: anyOf(MESSAGE_ROLES),
    actor_id: textFilter,
    after_position: position.optional(),
    before_position: position.optional(),
  }),
  answers: { 200: pageOf(ConversationMessage) },
  run: context => listRows(context, context.resource.id, context.query),
})

const addMessage = itemOperation(conversationKind, {
  id: 'createConversationMessage',
  method: 'post',
  path: `${path}/messages`,
  summary: 'Add a message at the end or at a position',
  tag,
  action: 'conversations:UpdateConversation',
  alsoActions: ['documents:GetDocument'],
  body: MessageInput,
  answers: { 201: ConversationMessage, 200: ConversationMessage },
  raises: ['SYSTEM_MESSAGE_NOT_ALLOWED', 'ACTOR_NOT_FOUND', 'NAME_CONFLICT', 'SESSION_CLOSED', 'SESSION_EXPIRED'],
  async run({ allow, body, resource, tx }) {
    if (body.role === 'system') raise('SYSTEM_MESSAGE_NOT_ALLOWED')
    // Before the conversation's lock: the delete of an actor goes the other way round.
    const authorless = body.actor_id != null && !(await actorKind.reference(tx, body.actor_id, resource.project_id))
    const owner = await locked(tx, resource.id)
    const session = await openSession(tx, owner)
    if (authorless) {
      // A repeat gets the first message whatever its body says (8.3.5).
      const first =
        body.idempotency_key === undefined ? null : await findMessageByKey(tx, owner.id, body.idempotency_key)
      if (first) return answer(200, presentMessage(first))
      raise('ACTOR_NOT_FOUND', { meta: { id: body.actor_id } })
    }
    const { message, created } = await appendMessage(tx, owner, {
      ...saidBy(body, allow),
      role: body.role,
      actor_id: body.actor_id ?? null,
      metadata: body.metadata,
      position: body.position,
      idempotency_key: body.idempotency_key,
    })
    if (created && session) await sessionHooks.only()?.stored(tx, session.id, message)
    return answer(created ? 201 : 200, message)
  },
})

const updateMessage = itemOperation(conversationKind, {
  id: 'updateConversationMessage',
  method: 'patch',
  path: `${path}/messages/{document_id}`,
  summary: "Change a message's metadata; its content never changes",
  tag,
  action: 'conversations:UpdateConversation',
  body: MessagePatch,
  answers: { 200: ConversationMessage },
  raises: ['SESSION_CLOSED', 'SESSION_EXPIRED'],
  async run({ body, resource, params, tx }) {
    const owner = await locked(tx, resource.id)
    await openSession(tx, owner)
    const message = await setMessageMetadata(tx, owner.id, params.document_id, body.metadata)
    if (!message) raise('RESOURCE_NOT_FOUND', { meta: { id: params.document_id } })
    return presentMessage(message)
  },
})

const deleteMessage = itemOperation(conversationKind, {
  id: 'deleteConversationMessage',
  method: 'delete',
  path: `${path}/messages/{document_id}`,
  summary: 'Delete a message; the others keep their positions',
  tag,
  action: 'conversations:UpdateConversation',
  answers: { 204: null },
  raises: ['SESSION_CLOSED', 'SESSION_EXPIRED'],
  async run({ resource, params, tx }) {
    const owner = await locked(tx, resource.id)
    await openSession(tx, owner)
    if (!(await removeMessage(tx, owner, params.document_id)))
      raise('RESOURCE_NOT_FOUND', { meta: { id: params.document_id } })
  },
})

/** A text may have 1 MiB, that of a named document more. */
const EXPORT_PAGE = 50

/**
 * The messages as lines of JSON, in order, read page by page as the client takes them. A caller who loses the right to
 * them in the meantime gets no further page: the answer breaks off.
 */
async function* exportLines({ services, resource, recheck }: Context<unknown, undefined, ConversationRow>) {
  const { STREAM_PING_INTERVAL_MS } = services.config
  let after = -1
  let checkedAt = Date.now()
  for (;;) {
    if (Date.now() - checkedAt >= STREAM_PING_INTERVAL_MS) {
      await recheck()
      checkedAt = Date.now()
    }
    const rows: readonly MessageRow[] = await messagesAfter(services.pool, resource.id, after, EXPORT_PAGE)
    if (rows.length > 0) yield `${rows.map(row => JSON.stringify(presentMessage(row))).join('\n')}\n`
    if (rows.length < EXPORT_PAGE) return
    after = rows[rows.length - 1].position
  }
}

const exportMessages = itemOperation(conversationKind, {
  id: 'exportConversation',
  method: 'get',
  path: `${path}/export`,
  summary: 'Export the messages in order, one JSON object a line',
  tag,
  action: 'conversations:GetConversation',
  answers: { 200: null },
  produces: 'application/x-ndjson',
  run: async context => streamed('application/x-ndjson', Readable.from(exportLines(context), { objectMode: false })),
})

const generateMessage = itemOperation(conversationKind, {
  id: 'generateConversationMessage',
  method: 'post',
  path: `${path}/generate`,
  summary: 'Ask an agent for the next message: in the background, waited for, or streamed',
  tag,
  action: 'conversations:GenerateConversationMessage',
  query: WaitQuery,
  body: GenerateMessageInput,
  answers: { 202: AcceptedTurn, 200: TurnResult },
  produces: 'text/event-stream',
  transaction: false,
  raises: [
    'AGENT_NOT_FOUND',
    'ACTOR_NOT_FOUND',
    'INVALID_TOOL_CONTEXT_KEY',
    'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED',
    'PROJECT_PAUSED',
    'SESSION_CLOSED',
    'SESSION_EXPIRED',
    'GENERATION_ALREADY_IN_PROGRESS',
    'AI_PROVIDER_NOT_FOUND',
    'AI_PROVIDER_MISCONFIGURED',
    'AI_PROVIDER_ERROR',
    'OUTPUT_SCHEMA_VALIDATION_FAILED',
    'GENERATION_FAILED',
    'QUOTA_EXCEEDED',
  ],
  run: generate,
})

export const conversationOperations: Operation[] = [
  createConversation,
  listConversations,
  getConversation,
  updateConversation,
  deleteConversation,
  ...tagOperations(conversationKind, {
    path,
    tag,
    read: 'conversations:GetConversation',
    write: 'conversations:UpdateConversation',
    setTags: (tx, row, tags) => setConversationTags(tx, row.id, tags),
  }),
  listMessages,
  addMessage,
  updateMessage,
  deleteMessage,
  exportMessages,
  generateMessage,
]
