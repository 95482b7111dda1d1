import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { MetadataBag } from '../../core/api/metadata.ts'
import { record } from '../../core/api/record.ts'
import { TagInput } from '../../core/api/tags.ts'
import { ToolContextInput } from '../../core/api/tool-context.ts'
import { eventSource } from '../../core/db/events.ts'
import { Name } from '../actors/model.ts'

export const CONVERSATION_STATUSES = ['open', 'closed'] as const
export const MESSAGE_ROLES = ['user', 'assistant'] as const

const time = z.iso.datetime()

export const Conversation = record(
  'Conversation',
  {
    name: z.string().nullable(),
    status: z.enum(CONVERSATION_STATUSES),
    actor_id: z.string().nullable().describe('Owner; not the same as authorship'),
    session_id: z.string().nullable().describe('The session it belongs to'),
    message_count: z.int(),
  },
  { tags: true },
)

/** A message; it has no id of its own and is named by its document (conversation, 8.1). */
export const ConversationMessage = z
  .object({
    document_id: z.string(),
    conversation_id: z.string(),
    role: z.enum(MESSAGE_ROLES),
    actor_id: z.string().nullable(),
    agent_id: z.string().nullable(),
    generation_id: z.string().nullable(),
    position: z.int().describe('Order; changes when messages are inserted before it'),
    content: z.string().nullable().describe('Null when the content was purged'),
    metadata: MetadataBag.nullable().describe('Shown to the model'),
    created_at: time,
  })
  .meta({ id: 'ConversationMessage' })

const link = z.string().min(1).max(255)

export const ConversationInput = z
  .strictObject({
    project_id: z.string().optional(),
    name: Name.nullish(),
    status: z.enum(CONVERSATION_STATUSES).optional(),
    actor_id: link.nullish(),
    tags: TagInput.optional(),
  })
  .meta({ id: 'ConversationInput' })

export const ConversationPatch = z
  .strictObject({
    name: Name.nullish(),
    status: z.enum(CONVERSATION_STATUSES).optional(),
    tags: TagInput.optional(),
  })
  .refine(patch => Object.values(patch).some(value => value !== undefined), 'must change at least one property')
  .meta({ id: 'ConversationPatch' })

/** Largest text of a message, in characters (conversation, 0.1). */
export const MessageText = z.string().min(1).max(262_144)

/** What a message says; a body has exactly one of the two. */
export const saidFields = {
  message: MessageText.optional(),
  document_id: link.optional().describe('A document of the project whose text the message has, instead of message'),
}
export const saysOne = (body: { message?: string; document_id?: string }): boolean =>
  (body.message === undefined) !== (body.document_id === undefined)
export const SAYS_ONE = 'exactly one of message and document_id is required'

export const MessageInput = z
  .strictObject({
    ...saidFields,
    // A system entry has a code of its own, so it is let through to be named.
    role: z.enum([...MESSAGE_ROLES, 'system']),
    actor_id: link.nullish(),
    position: z.int().min(0).max(2_147_483_647).optional(),
    metadata: MetadataBag.nullish(),
    idempotency_key: z.string().min(1).max(255).optional(),
  })
  .refine(saysOne, SAYS_ONE)
  .meta({ id: 'ConversationMessageInput' })

export const MessagePatch = z
  .strictObject({ metadata: MetadataBag.nullable() })
  .meta({ id: 'ConversationMessagePatch' })

export const GenerateMessageInput = z
  .strictObject({
    agent_id: link.nullish(),
    actor_id: link.nullish().describe('Who speaks; without agent_id its linked agent answers'),
    model: z.string().min(1).max(255).nullish(),
    stream: z.boolean().optional(),
    tool_context: ToolContextInput.nullish(),
  })
  .refine(input => input.agent_id != null || input.actor_id != null, 'agent_id or actor_id is required')
  .meta({ id: 'ConversationGenerateInput' })

/** A row of conversations; its columns are the record. */
export type ConversationRow = z.infer<typeof Conversation>

/** A message with its text; its columns are the record. */
export type MessageRow = z.infer<typeof ConversationMessage>

export const conversationKind = kind({
  name: 'conversation',
  prefix: 'conv',
  table: 'conversations',
  references: [{ kind: 'actor', column: 'actor_id', on_delete: 'null' }],
  record: Conversation,
  events: ['created', 'updated', 'deleted'],
})

/** Messages have no id of their own: their events name their document. */
export const messageEvents = eventSource({
  name: 'conversation_message',
  plural: 'conversation_messages',
  events: ['created', 'generated', 'deleted'],
  eventAliases: {
    created: ['conversations.message.created'],
    generated: ['conversations.message.generated'],
    deleted: ['conversations.message.deleted'],
  },
  eventNotes: 'resource_id = document_id; generated adds agent_id, generation_id, trace_id',
})

/** The record of a message as every surface shows it. */
export const presentMessage = (row: MessageRow): MessageRow => ({
  document_id: row.document_id,
  conversation_id: row.conversation_id,
  role: row.role,
  actor_id: row.actor_id,
  agent_id: row.agent_id,
  generation_id: row.generation_id,
  position: row.position,
  content: row.content,
  metadata: row.metadata,
  created_at: row.created_at,
})
