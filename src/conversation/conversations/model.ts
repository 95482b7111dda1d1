import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { MetadataBag } from '../../core/api/metadata.ts'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import { TagInput } from '../../core/api/tags.ts'
import { ToolContextInput } from '../../core/api/tool-context.ts'
import { eventSource } from '../../core/db/events.ts'
import { KnowledgeOverlay } from '../../execution/agents/knowledge.ts'
import { ActorName } from '../actors/model.ts'

export const CONVERSATION_STATUSES = ['open', 'closed'] as const
export const MESSAGE_ROLES = ['user', 'assistant'] as const

const link = z.string().min(1).max(255)

const fields = {
  name: ActorName.nullable().describe('Name to show'),
  status: z.enum(CONVERSATION_STATUSES).describe('A label for you: a closed conversation still takes messages'),
  actor_id: link.nullable().describe('Owner; not the same as authorship'),
}

export const Conversation = record(
  'Conversation',
  {
    ...fields,
    session_id: z.string().nullable().describe('The session it belongs to'),
    message_count: z.int().describe('Messages that it has'),
  },
  { tags: true },
)

/** A message; it has no id of its own and is named by its document. */
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
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'ConversationMessage' })

export const ConversationInput = createBody(
  'ConversationInput',
  { ...fields, tags: TagInput.describe('Tags to carry') },
  [],
  { name: 'Order 1042' },
)

export const ConversationPatch = patchBody(
  'ConversationPatch',
  {
    name: fields.name,
    status: fields.status,
    tags: TagInput.describe('Replaces the tags'),
  },
  { name: 'Order 1042' },
)

/** Largest text of a message, in characters. */
export const MessageText = z.string().min(1).max(262_144)

/** What a message says; a body has exactly one of the two. */
export const messageSourceFields = {
  message: MessageText.optional().describe('The text'),
  document_id: link.optional().describe('A document of the project whose text the message has, instead of message'),
}
export const hasExactlyOneSource = (body: { message?: string; document_id?: string }): boolean =>
  (body.message === undefined) !== (body.document_id === undefined)
export const ONE_SOURCE_MESSAGE = 'exactly one of message and document_id is required'

export const idempotencyKey = z
  .string()
  .min(1)
  .max(255)
  .optional()
  .describe('A repeat with the same key in the same conversation gets the first message and adds none')

export const MessageInput = z
  .strictObject({
    ...messageSourceFields,
    // A system entry has a code of its own, so it is let through to be named.
    role: z.enum([...MESSAGE_ROLES, 'system']).describe('Whose side it is on; `system` is refused'),
    actor_id: link.nullish().describe('The actor that wrote it'),
    position: z
      .int()
      .min(0)
      .max(2_147_483_647)
      .optional()
      .describe('Where to insert it, moving later ones up; default: at the end'),
    metadata: MetadataBag.nullish().describe('Data of your own, shown to the model'),
    idempotency_key: idempotencyKey,
  })
  .refine(hasExactlyOneSource, ONE_SOURCE_MESSAGE)
  .meta({ id: 'ConversationMessageInput', example: { role: 'user', message: 'Where is my order 1042?' } })

export const MessagePatch = z
  .strictObject({ metadata: MetadataBag.nullish().describe('Replaces the metadata; null clears it') })
  .meta({ id: 'ConversationMessagePatch' })

/** What a request for a turn may say of it. */
export const turnFields = {
  model: z.string().min(1).max(255).nullish().describe("Model for this turn, instead of the agent's"),
  stream: z.boolean().optional().describe('Answer with the event stream of the turn'),
  tool_context: ToolContextInput.nullish().describe('Headers that tool calls of this turn carry'),
}

export const OVERLAY_SAID =
  'What the turn knows beside what its agent and its session do: lists and tags are added, other values replaced. Needs `knowledge:SearchKnowledge` on what is added'

export const GenerateMessageInput = z
  .strictObject({
    agent_id: link.nullish().describe('Agent that answers'),
    actor_id: link.nullish().describe('Who speaks; without agent_id its linked agent or chat answers'),
    ...turnFields,
    knowledge_config: KnowledgeOverlay.optional().describe(OVERLAY_SAID),
  })
  .refine(input => input.agent_id != null || input.actor_id != null, 'agent_id or actor_id is required')
  .meta({ id: 'ConversationGenerateInput' })

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

export type ConversationRow = z.output<typeof conversationKind.row>

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
