import { z } from 'zod'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { TagInput } from '#core/api/tags.ts'
import { ToolContextInput } from '#core/api/tool-context.ts'
import { RecordedFailure } from '#core/base/errors.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import { KnowledgeOverlay, SessionKnowledge } from '#execution/agents/knowledge.ts'
import { Annotations } from '#execution/generations/model.ts'
import { ToolOutputs } from '#execution/generations/request/tool-outputs.ts'
import { ActorName } from '../actors/model.ts'
import { TurnResult } from '../dialog/mailbox/result.ts'
import {
  hasExactlyOneSource,
  idempotencyKey,
  isNotBlank,
  MessageOrigin,
  messageSourceFields,
  NOT_BLANK,
  ONE_SOURCE_MESSAGE,
  OVERLAY_DESCRIPTION,
  Refused,
  turnFields,
} from '../dialog/messages/model.ts'
import { MessageParts } from '../dialog/messages/parts-model.ts'

export const SESSION_STATUSES = ['open', 'closed', 'expired'] as const
export const CONTROLS = ['agent', 'operator'] as const
const URGENCIES = ['normal', 'high'] as const

const name = ActorName.nullable().describe('Display name')
const settings = {
  name,
  auto_generate: z.boolean().describe('Whether every message requests a turn'),
  message_delay_seconds: z
    .int()
    .min(0)
    .max(3600)
    .nullable()
    .describe('Seconds without a further message before an automatic turn starts'),
  inactivity_ttl_seconds: z
    .int()
    .min(0)
    .max(31_536_000)
    .describe('Seconds without a message after which the session expires. 0 disables expiry.'),
  tool_context: ToolContextInput.nullable().describe('Keys and values sent as headers with tool calls of its turns'),
  takeover_timeout_seconds: z
    .int()
    .min(1)
    .max(31_536_000)
    .nullable()
    .describe('Seconds without an operator message after which the session returns to the agent'),
  knowledge_config: SessionKnowledge.nullable().describe(
    'Additional knowledge of its turns: lists and tags are added to the configuration of the agent, other values replace it. Requires `knowledge:SearchKnowledge` on the additions and `memories:CreateMemoryEntry` on the memory store to write to.',
  ),
}

/** Limit of a session's state. */
const MAX_STATE_BYTES = 64 * 1024

const fitsState = (state: unknown) => Buffer.byteLength(JSON.stringify(state) ?? '') <= MAX_STATE_BYTES

/** State of a session: any JSON up to 64 KiB; null for none. */
export const SessionState = z
  .unknown()
  .refine(fitsState, 'must be at most 64 KiB')
  .describe('State that the agent shares with its client, any JSON up to 64 KiB. Null for none.')

/** Request for a person. */
const Attention = z
  .object({
    reason: z.string().nullable().describe('Null if it was erased'),
    urgency: z.enum(URGENCIES).describe('Urgency of the request'),
    since: z.iso.datetime().describe('Time of the request'),
    by: z.object({ type: z.enum(['agent', 'user', 'api_key']), id: z.string() }).describe('Who requested it'),
  })
  .meta({ id: 'SessionAttention' })
export type Attention = z.output<typeof Attention>

/** The public record of a session. */
export const Session = record(
  'Session',
  {
    agent_id: z.string().describe('ID of the agent that answers'),
    conversation_id: z.string(),
    status: z.enum(SESSION_STATUSES),
    actor_id: z.string().nullable().describe('ID of the end user'),
    ...settings,
    tool_context: z
      .record(z.string(), z.string())
      .nullable()
      .describe('Keys and values sent as headers with tool calls of its turns'),
    control: z.enum(CONTROLS).describe('Who answers: the agent, or an operator who took over'),
    assigned_to: z.string().nullable().describe('ID of the user who took over or was assigned'),
    assignee_name: z.string().nullable().describe('Display name of that user'),
    assigned_at: z.iso.datetime().nullable().describe('Time since which the session is assigned to that user'),
    attention: Attention.nullable().describe('Request for a person. Null if there is none.'),
    last_activity_at: z.iso.datetime().nullable().describe('Time of the last user message'),
    generating_at: z.iso.datetime().nullable().describe('Start of the running turn. Null if none is running.'),
    queued_turns: z.int().describe('Number of queued turns'),
    state: z.unknown().describe('State that the agent shares with its client. Null for none.'),
    forked_from_session_id: z.string().nullable(),
    forked_from_position: z.int().nullable().describe('Position of the last message copied by the fork'),
    unread_count: z.int().describe('Number of messages of the agent that the end user has not seen, at most 100'),
    title_error: RecordedFailure.nullable().describe(
      'Why the session was not named by its agent. Null without a failure, and once it is named.',
    ),
    summary_error: RecordedFailure.nullable().describe(
      'Why the last summary of its older messages failed. Null without a failure, and once one is written.',
    ),
    ephemeral: z
      .boolean()
      .describe('Whether it holds the end user of single turns: without messages, deleted after a day'),
  },
  { tags: true },
)

/** The principal of a turn and the permission it must still have when the turn starts. */
export type ReplyPermit = {
  authority: PrincipalRecord
  permission: { action: string; kind: string; id: string } | null
}

/** Columns that are not in the public record. */
export const sessionHidden = {
  /** The status in the table; `open` while an expiry is due and not yet stored. */
  stored_status: z.enum(SESSION_STATUSES),
  /** Number of turns that were aborted in favour of another. */
  takeovers: z.int(),
  /** External id of the end user. */
  actor_external_id: z.string().nullable(),
  /** Of the turn that answers after the handback. */
  reply_permit: z.custom<ReplyPermit>().nullable(),
  /** Whether no operator message was written for the time of `takeover_timeout_seconds`. */
  operator_timed_out: z.boolean(),
  /** Set when the end user deleted it. */
  hidden_at: z.iso.datetime().nullable(),
}

/** A row with the effective `status`, expiry included. */
export type SessionRow = z.output<typeof Session> & z.output<z.ZodObject<typeof sessionHidden>>

/** A message in session routes. */
export const SessionMessage = z
  .object({
    role: z.enum(['user', 'assistant']),
    origin: MessageOrigin,
    content: z.string().nullable(),
    parts: MessageParts,
    document_id: z.string(),
    position: z.int(),
    model: z.string().nullable(),
    actor_id: z.string().nullable(),
    generation_id: z.string().nullable(),
    author_name: z.string().nullable().describe('Display name of the user who wrote an operator message'),
    refused: Refused,
    annotations: Annotations.nullable(),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'SessionMessage' })

/** A message in lists, with the feedback of the end user who reads it. */
export const SessionMessageListed = SessionMessage.extend({
  feedback: z
    .object({
      rating: z.int().nullable().describe('1 – good, -1 – bad. Null without a rating.'),
      score: z.number().nullable().describe('Score from 0 to 1'),
      labels: z.array(z.string()).describe('Labels'),
      comment: z.string().nullable().describe('Comment'),
    })
    .nullable()
    .describe('Feedback of the end user who reads the message. Null without it, and for other callers.'),
}).meta({ id: 'SessionMessageListed' })

/** Response to a sent message. */
export const SessionMessageStored = z
  .object({
    role: z.literal('user'),
    content: z.string().nullable(),
    parts: MessageParts,
    document_id: z.string(),
    position: z.int(),
    created_at: z.iso.datetime(),
    generation_id: z.string().nullable().describe('ID of the turn that answers the message'),
    reply: TurnResult.nullable().describe('Result of the turn, if it was awaited'),
  })
  .meta({ id: 'SessionMessageStored' })

const reference = z.string().min(1).max(255)
const tags = TagInput.describe('Tags of the session')

export const SessionInput = createBody(
  'SessionInput',
  {
    agent_id: reference.describe('ID of the agent that answers'),
    actor_id: reference.nullable().describe('ID of the end user'),
    actor: z
      .strictObject({
        external_id: reference.describe('Your id of the end user'),
        name: ActorName.describe('Display name of a new actor'),
      })
      .describe('End user to find by external_id or create. Cannot be combined with actor_id.'),
    ...settings,
    tags,
  },
  ['agent_id'],
  { agent_id: 'agent_01k5p3vd7r9hj2x8m4qcw6tz0e', actor_id: 'actor_01k5p3vd7r9hj2x8m4qcw6tz0e' },
).refine(input => !(input.actor && input.actor_id), {
  path: ['actor'],
  message: 'cannot be combined with actor_id',
})

export const SessionPatch = patchBody(
  'SessionPatch',
  {
    status: z.enum(['open', 'closed']).describe('Status: closed — ends its turns; open — reopens a closed session'),
    ...settings,
    state: SessionState,
    tags: TagInput.describe('Replaces the tags'),
  },
  { name: 'Order 1042' },
)

export const ForkInput = patchBody('SessionForkInput', {
  fork_at_position: z
    .int()
    .min(0)
    .max(2_147_483_647)
    .describe('Position of the last message to copy. Default: all messages.'),
  agent_id: reference.describe('ID of another agent of the project. Default: the agent of the session.'),
  name,
  tags,
  tool_context: settings.tool_context,
})

export const SessionMessageInput = z
  .strictObject({
    ...messageSourceFields,
    tool_context: turnFields.tool_context,
    idempotency_key: idempotencyKey,
  })
  .refine(hasExactlyOneSource, ONE_SOURCE_MESSAGE)
  .refine(isNotBlank, NOT_BLANK)
  .meta({ id: 'SessionMessageInput' })

const note = z.string().trim().min(1).max(4000).optional()

export const TakeoverInput = z
  .strictObject({
    assignee_user_id: reference
      .optional()
      .describe('ID of the user who is assigned, with `sessions:OperateSession`. Default: the user of the credential.'),
    expected_assigned_to: reference
      .nullable()
      .optional()
      .describe(
        'ID of the user from whom the session is taken over, null for none. Refused with SESSION_ASSIGNED while another user is assigned. Default: any.',
      ),
    running: z
      .enum(['finish', 'abort'])
      .optional()
      .describe('Effect on the running turn: finish — its reply is stored (default); abort — it is discarded'),
    note: note.describe('Note stored as a message that the agent reads and the end user does not see'),
  })
  .meta({ id: 'SessionTakeoverInput' })

export const OperatorMessageInput = z
  .strictObject({ ...messageSourceFields, idempotency_key: idempotencyKey })
  .refine(hasExactlyOneSource, ONE_SOURCE_MESSAGE)
  .refine(isNotBlank, NOT_BLANK)
  .meta({ id: 'OperatorMessageInput', example: { message: 'I have booked the refund.' } })

export const HandbackInput = z
  .strictObject({
    note: note.describe('Note that the agent reads and the end user does not see'),
    generate: z
      .boolean()
      .optional()
      .describe(
        'Whether the agent answers now. It also does if the end user wrote last and the session has auto_generate.',
      ),
  })
  .meta({ id: 'SessionHandbackInput' })

/** Response to a handback. */
export const HandedBack = Session.extend({
  generation_id: z.string().nullable().describe('ID of the turn that answers now. Null if there is none.'),
}).meta({ id: 'SessionHandedBack' })

export const AttentionInput = z
  .strictObject({
    reason: z.string().trim().min(1).max(500).nullable().describe('Why a person is needed; null clears the request'),
    urgency: z.enum(URGENCIES).optional().describe('Urgency of the request. Default normal.'),
  })
  .meta({ id: 'SessionAttentionInput', example: { reason: 'The customer disputes an invoice', urgency: 'high' } })

export const ON_BUSY = ['reject', 'queue', 'interrupt', 'rollback'] as const

export const SessionGenerateInput = z
  .strictObject({
    ...turnFields,
    knowledge_config: KnowledgeOverlay.optional().describe(OVERLAY_DESCRIPTION),
    on_busy: z
      .enum(ON_BUSY)
      .optional()
      .describe(
        'Behaviour while another turn runs: reject — refuse the request (default); queue — wait for it; interrupt — abort it and store its partial text; rollback — abort it and discard its text',
      ),
  })
  .meta({ id: 'SessionGenerateInput' })

/** A user who is assigned to sessions. */
export const SessionAssignee = z.object({
  user_id: z.string().describe('ID of the user'),
  name: z.string().nullable().describe('Display name of the user'),
  session_count: z.int().describe('Number of sessions that the caller may list'),
})

export const SessionAssignees = z.object({ data: z.array(SessionAssignee) }).meta({ id: 'SessionAssignees' })

export type SessionStatus = (typeof SESSION_STATUSES)[number]

export const SessionToolOutputs = z
  .strictObject({
    generation_id: z.string().min(1).max(255).describe('ID of the paused generation'),
    tool_outputs: ToolOutputs,
    stream: z.boolean().optional().describe('Whether to respond with the event stream of the resumed turn'),
  })
  .meta({ id: 'SessionToolOutputsInput' })
