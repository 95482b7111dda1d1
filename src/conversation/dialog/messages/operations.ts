import { z } from 'zod'
import { actorKind } from '#conversation/actors/model.ts'
import { emitSessionDeleted, findSession, sessionKind } from '#conversation/sessions/kind.ts'
import { touchSession } from '#conversation/sessions/store.ts'
import { columnFilter, containsFilter, equalsFilter, oneOf, tagsFilter } from '#core/api/filters.ts'
import { enumListQuery, integerQuery, MAX_INTEGER, pageOf, textFilter } from '#core/api/lists.ts'
import { ndjsonStream } from '#core/api/ndjson.ts'
import { itemOperation, type Operation, result } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import { spendRefusals } from '#execution/generations/request/create.ts'
import { WaitQuery } from '#execution/generations/request/respond.ts'
import { turnWaiting } from '#execution/generations/streams/events.ts'
import { generateInConversation, replayGenerate } from '../mailbox/generate.ts'
import { clearMailbox, conversationDeletedFailure, requireOpenSession } from '../mailbox/mailbox.ts'
import { AcceptedReply, conversationTurnEvents, TurnResult } from '../mailbox/result.ts'
import {
  CONVERSATION_STATUSES,
  ConversationInput,
  ConversationMessage,
  ConversationPatch,
  conversationKind,
  GenerateMessageInput,
  MESSAGE_ROLES,
  MessageInput,
  MessagePatch,
  type MessageRow,
} from './model.ts'
import { type AnsweringAgent, checkBodyParts, findSessionAgent } from './parts.ts'
import {
  appendMessage,
  findMessage,
  findMessageByKey,
  listMessages as listRows,
  lockConversationWithPlace,
  type MessageDraft,
  messageSource,
  messagesAfter,
  removeConversation,
  removeMessage,
  setMessageMetadata,
} from './store.ts'

const tag = 'Conversations'
const path = '/conversations/{conversation_id}'

/** Returns the agent of the session of a conversation; null without a session. */
async function findAnsweringAgent(
  db: Queryable,
  { session_id }: { session_id: string | null },
): Promise<AnsweringAgent | null> {
  const session = session_id === null ? null : await findSession(db, session_id)
  return session ? findSessionAgent(db, session) : null
}

const conversations = resource(conversationKind, { path: '/conversations', tag })

const deleteConversation = itemOperation(conversationKind, {
  id: 'deleteConversation',
  method: 'delete',
  path,
  summary: 'Delete a conversation',
  description:
    'Deletes the conversation with its messages and its session. Running turns are cancelled. Cannot be undone.',
  tag,
  action: 'conversations:DeleteConversation',
  alsoActions: ['sessions:DeleteSession'],
  answers: { 204: null },
  async run({ resource, tx, services, allow }) {
    const stored = await conversationKind.lock(tx, resource.id)
    const session = stored.session_id === null ? null : await findSession(tx, stored.session_id)
    if (session) allow('sessions:DeleteSession', { kind: sessionKind, row: session })
    await clearMailbox(tx, services, stored, conversationDeletedFailure(stored.id))
    if (session) await emitSessionDeleted(tx, session.id)
    await removeConversation(tx, stored)
  },
})

const position = integerQuery(0, MAX_INTEGER).optional()

const listMessages = itemOperation(conversationKind, {
  id: 'listConversationMessages',
  method: 'get',
  path: `${path}/messages`,
  summary: 'List messages of a conversation',
  description: 'Oldest first, each with its text and its actor.',
  tag,
  action: 'conversations:GetConversation',
  paged: true,
  query: z.object({
    role: enumListQuery(MESSAGE_ROLES).describe('Role of the messages; repeat for several'),
    actor_id: textFilter.describe('ID of the actor of the messages'),
    after_position: position.describe('Position after which messages are returned'),
    before_position: position.describe('Position before which messages are returned'),
  }),
  answers: { 200: pageOf(ConversationMessage) },
  run: context => listRows(context, context.resource.id, context.query),
})

const addMessage = itemOperation(conversationKind, {
  id: 'createConversationMessage',
  method: 'post',
  path: `${path}/messages`,
  summary: 'Create a message',
  description: 'Adds a message at the end or at a position. No reply is generated.',
  tag,
  action: 'conversations:UpdateConversation',
  alsoActions: ['documents:GetDocument', 'files:DownloadFile'],
  body: MessageInput,
  answers: { 201: ConversationMessage, 200: ConversationMessage },
  raises: [
    'SYSTEM_MESSAGE_NOT_ALLOWED',
    'ACTOR_NOT_FOUND',
    'FILE_NOT_FOUND',
    'MEDIA_NOT_ACCEPTED',
    'NAME_CONFLICT',
    'SESSION_CLOSED',
    'SESSION_EXPIRED',
  ],
  async prepare(context) {
    const { body, resource, services } = context
    if (body.role === 'system') raise('SYSTEM_MESSAGE_NOT_ALLOWED')
    return checkBodyParts(context, resource.project_id, body, () => findAnsweringAgent(services.pool, resource))
  },
  async run({ allow, body, prepared, resource, tx }) {
    // Before the conversation's lock, in the order of an actor's deletion.
    const unknown = body.actor_id != null && !(await actorKind.reference(tx, body.actor_id, resource.project_id))
    const locked = await lockConversationWithPlace(tx, resource.id)
    if (!locked) return raise(conversationKind.notFound, { meta: { id: resource.id } })
    const { conversation: owner, place } = locked
    const session = await requireOpenSession(tx, owner)
    if (unknown) {
      // A repeat gets the first message, whatever its body contains.
      const first =
        body.idempotency_key === undefined ? null : await findMessageByKey(tx, owner.id, body.idempotency_key)
      if (first) return result(200, first)
      raise('ACTOR_NOT_FOUND', { meta: { id: body.actor_id } })
    }
    const draft: MessageDraft = {
      ...messageSource(body, allow, prepared),
      role: body.role as MessageRow['role'],
      actor_id: body.actor_id ?? null,
      metadata: body.metadata,
      position: body.position,
      idempotency_key: body.idempotency_key,
    }
    const { message, created } = await appendMessage(tx, owner, draft, place)
    if (created && session && message.role === 'user') touchSession(tx, session.id)
    return result(created ? 201 : 200, message)
  },
})

const updateMessage = itemOperation(conversationKind, {
  id: 'updateConversationMessage',
  method: 'patch',
  path: `${path}/messages/{document_id}`,
  summary: 'Update message metadata',
  description: 'Replaces the metadata; null clears it. Other fields of a message never change.',
  tag,
  action: 'conversations:UpdateConversation',
  body: MessagePatch,
  answers: { 200: ConversationMessage },
  raises: ['SESSION_CLOSED', 'SESSION_EXPIRED'],
  async run({ body, resource, params: { document_id: id }, tx }) {
    const owner = await conversationKind.lock(tx, resource.id)
    await requireOpenSession(tx, owner)
    const message = await (body.metadata === undefined
      ? findMessage(tx, owner.id, id)
      : setMessageMetadata(tx, owner, id, body.metadata))
    return message ?? raise('RESOURCE_NOT_FOUND', { meta: { id } })
  },
})

const deleteMessage = itemOperation(conversationKind, {
  id: 'deleteConversationMessage',
  method: 'delete',
  path: `${path}/messages/{document_id}`,
  summary: 'Delete a message',
  description: 'Other messages keep their positions. Later turns do not read the message.',
  tag,
  action: 'conversations:UpdateConversation',
  answers: { 204: null },
  raises: ['SESSION_CLOSED', 'SESSION_EXPIRED'],
  async run({ resource, params: { document_id: id }, tx }) {
    const owner = await conversationKind.lock(tx, resource.id)
    await requireOpenSession(tx, owner)
    if (!(await removeMessage(tx, owner, id))) raise('RESOURCE_NOT_FOUND', { meta: { id } })
  },
})

/** Small, because a text may have 1 MiB and the text of a document more. */
const EXPORT_PAGE = 50

export const conversationOperations: Operation[] = [
  conversations.create({ body: ConversationInput, raises: ['ACTOR_NOT_FOUND'] }),
  // Order by conversations_project; filters by conversations_actor, conversations_tags and conversation_messages_actor.
  conversations.list({
    filters: {
      actor_id: columnFilter(
        textFilter.describe('ID of an actor with a message in the conversation'),
        id => sql.fragment`exists (select 1 from conversation_messages m
          where m.actor_id = ${id} and m.conversation_id = t.id)`,
      ),
      owner_actor_id: equalsFilter('actor_id'),
      status: oneOf('status', CONVERSATION_STATUSES),
      name: containsFilter('name'),
      tags: tagsFilter,
    },
  }),
  conversations.get(),
  conversations.update({ body: ConversationPatch }),
  deleteConversation,
  ...conversations.tags(),
  listMessages,
  addMessage,
  updateMessage,
  deleteMessage,
  conversations.action('export', {
    method: 'get',
    summary: 'Export messages of a conversation',
    description:
      'Returns one JSON object per line, oldest first. A response that does not end with a newline is incomplete.',
    action: 'conversations:GetConversation',
    answers: { 200: ConversationMessage },
    produces: 'application/x-ndjson',
    internal: true,
    async run(context) {
      const { services, resource } = context
      return ndjsonStream<MessageRow>(context, {
        read: (last, limit) => messagesAfter(services.pool, resource.id, last?.position ?? -1, limit),
        pageSize: EXPORT_PAGE,
        present: message => message,
      })
    },
  }),
  conversations.action('generate', {
    id: 'generateConversationMessage',
    starts: { kind: 'generation', field: 'generation_id' },
    summary: 'Generate a message',
    description:
      'Generates the next message by an agent or a chat, in the background unless `wait` or `stream` is set. An actor linked to a chat answers with one completion: it has no generation, and its text is streamed as a whole.',
    action: 'conversations:GenerateConversationMessage',
    query: WaitQuery,
    body: GenerateMessageInput,
    answers: { 202: AcceptedReply, 200: TurnResult },
    stream: conversationTurnEvents,
    waiting: turnWaiting(false),
    transaction: false,
    raises: [
      'AGENT_NOT_FOUND',
      'ACTOR_NOT_FOUND',
      'CHAT_NOT_FOUND',
      'INVALID_TOOL_CONTEXT_KEY',
      'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED',
      'PROJECT_PAUSED',
      'SESSION_CLOSED',
      'SESSION_EXPIRED',
      'GENERATION_ALREADY_IN_PROGRESS',
      'AI_PROVIDER_NOT_FOUND',
      'MODEL_ROUTE_NOT_FOUND',
      'AI_PROVIDER_MISCONFIGURED',
      'AI_PROVIDER_ERROR',
      'OUTPUT_SCHEMA_VALIDATION_FAILED',
      'GENERATION_FAILED',
      ...spendRefusals,
    ],
    run: generateInConversation,
    again: replayGenerate,
  }),
]
