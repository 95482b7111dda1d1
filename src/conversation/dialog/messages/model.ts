import { z } from 'zod'
import { ActorName } from '#conversation/actors/model.ts'
import { kind } from '#core/api/kind.ts'
import { MetadataBag } from '#core/api/metadata.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { TagInput } from '#core/api/tags.ts'
import { ToolContextInput } from '#core/api/tool-context.ts'
import { RecordedFailure } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import { eventSource } from '#core/writes/events.ts'
import { KnowledgeOverlay } from '#execution/agents/knowledge.ts'
import { Annotations } from '#execution/generations/model.ts'
import { MessageParts, MessageText, PartsInput } from './parts-model.ts'

export const CONVERSATION_STATUSES = ['open', 'closed'] as const
export const MESSAGE_ROLES = ['user', 'assistant'] as const
export const MESSAGE_ORIGINS = ['end_user', 'agent', 'operator', 'approval', 'system'] as const

const link = z.string().min(1).max(255)

const fields = {
  name: ActorName.nullable().describe('Display name'),
  status: z
    .enum(CONVERSATION_STATUSES)
    .describe('Status for your own use: a closed conversation still accepts messages'),
  actor_id: link.nullable().describe('ID of the actor that owns the conversation, not necessarily an author'),
}

export const Conversation = record(
  'Conversation',
  {
    ...fields,
    session_id: z.string().nullable().describe('ID of the session of the conversation'),
    message_count: z.int().describe('Number of messages'),
    summary_error: RecordedFailure.nullable().describe(
      'Why the last summary of its older messages failed. Null without a failure, and once one is written.',
    ),
  },
  { tags: true },
)

export const MessageOrigin = z
  .enum(MESSAGE_ORIGINS)
  .describe(
    'Cause of the message: `end_user` — sent by the end user or for them; `agent` — a reply; `operator` — written by a person of the team; `approval` — opening of the turn that continues after an approval; `system` — written by the platform or imported',
  )

export const Refused = z
  .boolean()
  .describe(
    'Whether the vendor of the model refused to answer. Later prompts have neither the message nor the messages that it answers.',
  )

/** A message, identified by its document. */
export const ConversationMessage = z
  .object({
    document_id: z.string(),
    conversation_id: z.string(),
    role: z.enum(MESSAGE_ROLES),
    origin: MessageOrigin,
    actor_id: z.string().nullable(),
    agent_id: z.string().nullable(),
    generation_id: z.string().nullable(),
    position: z.int().describe('Position in the conversation; changes when messages are inserted before it'),
    content: z.string().nullable().describe('Text. Null if it was erased.'),
    parts: MessageParts,
    metadata: MetadataBag.nullable().describe('Metadata, included in the prompt of the model'),
    refused: Refused,
    annotations: Annotations.nullable(),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'ConversationMessage' })

export const ConversationInput = createBody(
  'ConversationInput',
  { ...fields, tags: TagInput.describe('Tags of the conversation') },
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

/** Content of a message; a body has exactly one of the three. */
export const messageSourceFields = {
  message: MessageText.optional().describe('Text of the message'),
  document_id: link
    .optional()
    .describe('ID of a document of the project whose text is the content. Cannot be combined with message.'),
  parts: PartsInput.optional(),
}
export const hasExactlyOneSource = (body: { message?: string; document_id?: string; parts?: unknown }): boolean =>
  [body.message, body.document_id, body.parts].filter(source => source !== undefined).length === 1
export const ONE_SOURCE_MESSAGE = 'exactly one of message, document_id and parts is required'

export const isNotBlank = (body: { message?: string }): boolean => body.message?.trim() !== ''
export const NOT_BLANK = { path: ['message'], message: 'must not be blank' }

export const idempotencyKey = z
  .string()
  .min(1)
  .max(255)
  .optional()
  .describe('Key for retries: a second request with it returns the first message and adds none')

export const MessageInput = z
  .strictObject({
    ...messageSourceFields,
    // `system` is accepted here to be rejected with a specific code.
    role: z.enum([...MESSAGE_ROLES, 'system']).describe('Author of the message; `system` is rejected'),
    actor_id: link.nullish().describe('ID of the actor that wrote the message'),
    position: z
      .int()
      .min(0)
      .max(2_147_483_647)
      .optional()
      .describe('Position of the message; later messages move up. Default: at the end.'),
    metadata: MetadataBag.nullish().describe('Your metadata, included in the prompt of the model'),
    idempotency_key: idempotencyKey,
  })
  .refine(hasExactlyOneSource, ONE_SOURCE_MESSAGE)
  .refine(body => body.role !== 'user' || isNotBlank(body), NOT_BLANK)
  .meta({ id: 'ConversationMessageInput', example: { role: 'user', message: 'Where is my order 1042?' } })

export const MessagePatch = z
  .strictObject({ metadata: MetadataBag.nullish().describe('Metadata; replaces the stored metadata, null clears it') })
  .meta({ id: 'ConversationMessagePatch' })

/** Fields of requests that create a turn. */
export const turnFields = {
  model: z.string().min(1).max(255).nullish().describe('Model of this turn; overrides the model of the agent'),
  stream: z.boolean().optional().describe('Whether to respond with the event stream of the turn'),
  tool_context: ToolContextInput.nullish().describe('Keys and values sent as headers with tool calls of this turn'),
}

export const OVERLAY_DESCRIPTION =
  'Additional knowledge of the turn: lists and tags are added to the configuration of the agent and the session, other values replace it. Requires `knowledge:SearchKnowledge` on the additions.'

export const GenerateMessageInput = z
  .strictObject({
    agent_id: link.nullish().describe('ID of the agent that answers'),
    actor_id: link.nullish().describe('ID of the speaking actor; without agent_id its linked agent or chat answers'),
    ...turnFields,
    knowledge_config: KnowledgeOverlay.optional().describe(OVERLAY_DESCRIPTION),
  })
  .refine(input => input.agent_id != null || input.actor_id != null, 'agent_id or actor_id is required')
  .meta({ id: 'ConversationGenerateInput' })

/** A message with its text; its columns are the public record. */
export type MessageRow = z.infer<typeof ConversationMessage>

export const conversationKind = kind({
  name: 'conversation',
  prefix: 'conv',
  table: 'conversations',
  references: [
    { kind: 'actor', column: 'actor_id', on_delete: 'null' },
    {
      kind: 'file',
      column: 'file_ids',
      field: () => sql.fragment`'parts'::text`,
      condition: files => sql.fragment`id in (
        select m.conversation_id from conversation_messages m where m.file_ids && array(${files}))`,
      on_delete: 'block',
    },
  ],
  record: Conversation,
  hidden: {
    /** Whether a stream of its session was ever opened. */
    streamed: z.boolean(),
    /** Bytes of a token in the last request of a turn with a context policy, by the metered input. */
    bytes_per_token: z.number().nullable(),
  },
  events: ['created', 'updated', 'deleted'],
})

export type ConversationRow = z.output<typeof conversationKind.row>

/** Events of messages, identified by their document. */
export const messageEvents = eventSource({
  name: 'conversation_message',
  plural: 'conversation_messages',
  events: ['created', 'generated', 'deleted'],
  eventAliases: {
    created: ['conversations.message.created'],
    generated: ['conversations.message.generated'],
    deleted: ['conversations.message.deleted'],
  },
  eventNotes: 'resource_id is the document_id; generated adds agent_id, generation_id, trace_id',
})
