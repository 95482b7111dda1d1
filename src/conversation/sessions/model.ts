import { z } from 'zod'
import { TagBag, type Tags } from '../../core/api/record.ts'
import { TagInput } from '../../core/api/tags.ts'
import { type ToolContext, ToolContextInput } from '../../core/api/tool-context.ts'
import { SAYS_ONE, saidFields, saysOne } from '../conversations/model.ts'
import { TurnResult } from '../turns/result.ts'

export const SESSION_STATUSES = ['open', 'closed', 'expired'] as const

const time = z.iso.datetime()

/** A session as the wire shows it (conversation, 10.1). */
export const Session = z
  .object({
    id: z.string(),
    project_id: z.string(),
    agent_id: z.string(),
    conversation_id: z.string(),
    status: z.enum(SESSION_STATUSES),
    name: z.string().nullable(),
    actor_id: z.string().nullable().describe('The end user'),
    tags: TagBag,
    auto_generate: z.boolean().describe('Every message asks for a turn'),
    message_delay_seconds: z.int().nullable().describe('Quiet time before an automatic turn starts'),
    inactivity_ttl_seconds: z.int().describe('The session expires after so long without a message; 0 is never'),
    tool_context: z.record(z.string(), z.string()).nullable(),
    last_activity_at: time.nullable().describe('Time of the last user message'),
    generating_at: time.nullable().describe('Start of the running turn'),
    queued_turns: z.int(),
    forked_from_session_id: z.string().nullable(),
    forked_from_position: z.int().nullable(),
    created_at: time,
    updated_at: time,
  })
  .meta({ id: 'Session' })

/** A message as the session routes show it (conversation, 10.1). */
export const SessionMessage = z
  .object({
    role: z.enum(['user', 'assistant']),
    content: z.string().nullable(),
    document_id: z.string(),
    position: z.int(),
    model: z.string().nullable(),
    actor_id: z.string().nullable(),
    generation_id: z.string().nullable(),
    created_at: time,
  })
  .meta({ id: 'SessionMessage' })

/** The answer to a posted message. */
export const SessionMessageStored = z
  .object({
    role: z.literal('user'),
    content: z.string().nullable(),
    document_id: z.string(),
    position: z.int(),
    created_at: time,
    generation_id: z.string().nullable().describe('The turn that answers it'),
    reply: TurnResult.nullable().describe('The answer, when it was waited for'),
  })
  .meta({ id: 'SessionMessageStored' })

const name = z.string().trim().min(1).max(255).nullable()
const settings = {
  name: name.optional(),
  tags: TagInput.optional(),
  auto_generate: z.boolean().optional(),
  tool_context: ToolContextInput.nullable().optional(),
  inactivity_ttl_seconds: z.int().min(0).max(31_536_000).optional(),
  message_delay_seconds: z.int().min(0).max(3600).nullable().optional(),
}

const reference = z.string().min(1).max(255)

export const SessionInput = z
  .strictObject({
    project_id: z.string().optional(),
    agent_id: reference,
    actor_id: reference.nullable().optional(),
    actor: z
      .strictObject({ external_id: z.string().min(1).max(255), name: z.string().trim().min(1).max(255) })
      .optional()
      .describe('The end user, found by external_id or made'),
    ...settings,
  })
  .refine(input => !(input.actor && input.actor_id), {
    path: ['actor'],
    message: 'cannot be given together with actor_id',
  })
  .meta({ id: 'SessionInput' })

export const SessionPatch = z
  .strictObject({ status: z.enum(['open', 'closed']).optional(), ...settings })
  .meta({ id: 'SessionPatch' })

export const ForkInput = z
  .strictObject({
    fork_at_position: z.int().min(0).max(2_147_483_647).optional(),
    agent_id: reference.optional(),
    name: name.optional(),
    tags: TagInput.optional(),
    tool_context: ToolContextInput.nullable().optional(),
  })
  .meta({ id: 'SessionForkInput' })

export const SessionMessageInput = z
  .strictObject({
    ...saidFields,
    tool_context: ToolContextInput.nullable().optional().describe('For the turn this message asks for'),
    idempotency_key: z.string().min(1).max(255).optional(),
  })
  .refine(saysOne, SAYS_ONE)
  .meta({ id: 'SessionMessageInput' })

export const ON_BUSY = ['reject', 'queue', 'interrupt', 'rollback'] as const

export const SessionGenerateInput = z
  .strictObject({
    model: z.string().min(1).max(255).nullable().optional(),
    tool_context: ToolContextInput.nullable().optional(),
    stream: z.boolean().optional(),
    on_busy: z
      .enum(ON_BUSY)
      .optional()
      .describe(
        'What a running turn means to this one: refuse it, wait behind it, or abort it with its text kept (interrupt) or dropped (rollback)',
      ),
  })
  .meta({ id: 'SessionGenerateInput' })

export type SessionStatus = (typeof SESSION_STATUSES)[number]

/** A row as `find` and lists read it: `status` is the one in force, expiry included. */
export type SessionRow = {
  id: string
  project_id: string
  agent_id: string
  conversation_id: string
  status: SessionStatus
  /** As written; `open` beside a status of `expired` until somebody writes the expiry down. */
  stored_status: SessionStatus
  name: string | null
  actor_id: string | null
  tags: Tags
  auto_generate: boolean
  message_delay_seconds: number | null
  inactivity_ttl_seconds: number
  tool_context: ToolContext | null
  last_activity_at: string | null
  generating_at: string | null
  queued_turns: number
  forked_from_session_id: string | null
  forked_from_position: number | null
  created_at: string
  updated_at: string
  /** Never on the wire: how often a turn was aborted in favour of another. */
  takeovers: number
  /** Never on the wire: the name the end user has outside. */
  actor_external_id: string | null
}

export const presentSession = (row: SessionRow) => ({
  id: row.id,
  project_id: row.project_id,
  agent_id: row.agent_id,
  conversation_id: row.conversation_id,
  status: row.status,
  name: row.name,
  actor_id: row.actor_id,
  tags: row.tags,
  auto_generate: row.auto_generate,
  message_delay_seconds: row.message_delay_seconds,
  inactivity_ttl_seconds: row.inactivity_ttl_seconds,
  tool_context: row.tool_context,
  last_activity_at: row.last_activity_at,
  generating_at: row.generating_at,
  queued_turns: row.queued_turns,
  forked_from_session_id: row.forked_from_session_id,
  forked_from_position: row.forked_from_position,
  created_at: row.created_at,
  updated_at: row.updated_at,
})
