import { z } from 'zod'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import { TagInput } from '../../core/api/tags.ts'
import { ToolContextInput } from '../../core/api/tool-context.ts'
import { KnowledgeOverlay, SessionKnowledge } from '../../execution/agents/knowledge.ts'
import { ToolOutputs } from '../../execution/generations/request/tool-outputs.ts'
import { ActorName } from '../actors/model.ts'
import {
  hasExactlyOneSource,
  idempotencyKey,
  messageSourceFields,
  ONE_SOURCE_MESSAGE,
  OVERLAY_SAID,
  turnFields,
} from '../conversations/model.ts'
import { TurnResult } from '../turns/result.ts'

export const SESSION_STATUSES = ['open', 'closed', 'expired'] as const

const name = ActorName.nullable().describe('Name to show')
const settings = {
  name,
  auto_generate: z.boolean().describe('Every message asks for a turn'),
  message_delay_seconds: z.int().min(0).max(3600).nullable().describe('Quiet time before an automatic turn starts'),
  inactivity_ttl_seconds: z
    .int()
    .min(0)
    .max(31_536_000)
    .describe('The session expires after so long without a message; 0 is never'),
  tool_context: ToolContextInput.nullable().describe('Headers that tool calls of its turns carry'),
  knowledge_config: SessionKnowledge.nullable().describe(
    'What its turns know beside what the agent does: lists and tags are added, other values replaced. Needs `knowledge:SearchKnowledge` on what is added, and `memories:CreateMemoryEntry` on a store to write to',
  ),
}

/** A session as the wire shows it. */
export const Session = record(
  'Session',
  {
    agent_id: z.string().describe('The agent that answers'),
    conversation_id: z.string(),
    status: z.enum(SESSION_STATUSES),
    actor_id: z.string().nullable().describe('The end user'),
    ...settings,
    tool_context: z.record(z.string(), z.string()).nullable().describe('Headers that tool calls of its turns carry'),
    last_activity_at: z.iso.datetime().nullable().describe('Time of the last user message'),
    generating_at: z.iso.datetime().nullable().describe('Start of the running turn'),
    queued_turns: z.int().describe('Turns that wait for the current one'),
    forked_from_session_id: z.string().nullable(),
    forked_from_position: z.int().nullable().describe('Last message that was taken over'),
  },
  { tags: true },
)

/** Columns that the wire does not show. */
export const sessionHidden = {
  /** As written; `open` beside a status of `expired` until somebody writes the expiry down. */
  stored_status: z.enum(SESSION_STATUSES),
  /** How often a turn was aborted in favour of another. */
  takeovers: z.int(),
  /** The name the end user has outside. */
  actor_external_id: z.string().nullable(),
}

/** A row as `find` and lists read it: `status` is the one in force, expiry included. */
export type SessionRow = z.output<typeof Session> & z.output<z.ZodObject<typeof sessionHidden>>

/** A message as the session routes show it. */
export const SessionMessage = z
  .object({
    role: z.enum(['user', 'assistant']),
    content: z.string().nullable(),
    document_id: z.string(),
    position: z.int(),
    model: z.string().nullable(),
    actor_id: z.string().nullable(),
    generation_id: z.string().nullable(),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'SessionMessage' })

/** The answer to a posted message. */
export const SessionMessageStored = z
  .object({
    role: z.literal('user'),
    content: z.string().nullable(),
    document_id: z.string(),
    position: z.int(),
    created_at: z.iso.datetime(),
    generation_id: z.string().nullable().describe('The turn that answers it'),
    reply: TurnResult.nullable().describe('The answer, when it was waited for'),
  })
  .meta({ id: 'SessionMessageStored' })

const reference = z.string().min(1).max(255)
const tags = TagInput.describe('Tags to carry')

export const SessionInput = createBody(
  'SessionInput',
  {
    agent_id: reference.describe('The agent that answers'),
    actor_id: reference.nullable().describe('The end user'),
    actor: z
      .strictObject({
        external_id: reference.describe('Your id of the end user'),
        name: ActorName.describe('Name of an actor that is made'),
      })
      .describe('The end user, found by external_id or made'),
    ...settings,
    tags,
  },
  ['agent_id'],
  { agent_id: 'agent_01k5p3vd7r9hj2x8m4qcw6tz0e', actor_id: 'actor_01k5p3vd7r9hj2x8m4qcw6tz0e' },
).refine(input => !(input.actor && input.actor_id), {
  path: ['actor'],
  message: 'cannot be given together with actor_id',
})

export const SessionPatch = patchBody(
  'SessionPatch',
  {
    status: z.enum(['open', 'closed']).describe('`closed` ends its turns; `open` opens a closed session again'),
    ...settings,
    tags: TagInput.describe('Replaces the tags'),
  },
  { name: 'Order 1042' },
)

export const ForkInput = patchBody('SessionForkInput', {
  fork_at_position: z
    .int()
    .min(0)
    .max(2_147_483_647)
    .describe('Position of the last message to take along; default: all messages'),
  agent_id: reference.describe('Another agent of the project to answer; default: the same'),
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
  .meta({ id: 'SessionMessageInput' })

export const ON_BUSY = ['reject', 'queue', 'interrupt', 'rollback'] as const

export const SessionGenerateInput = z
  .strictObject({
    ...turnFields,
    knowledge_config: KnowledgeOverlay.optional().describe(OVERLAY_SAID),
    on_busy: z
      .enum(ON_BUSY)
      .optional()
      .describe(
        'What a running turn means to this one: refuse it, wait behind it, or abort it with its text kept (interrupt) or dropped (rollback)',
      ),
  })
  .meta({ id: 'SessionGenerateInput' })

export type SessionStatus = (typeof SESSION_STATUSES)[number]

export const SessionToolOutputs = z
  .strictObject({
    generation_id: z.string().min(1).max(255).describe('The turn that waits'),
    tool_outputs: ToolOutputs,
    stream: z.boolean().optional().describe('Answer with the event stream of what follows'),
  })
  .meta({ id: 'SessionToolOutputsInput' })
