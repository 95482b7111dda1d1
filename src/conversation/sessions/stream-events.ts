import { z } from 'zod'
import { isAllowed } from '#core/api/access.ts'
import { eventMessage } from '#core/api/event-stream.ts'
import { type EventSchema, type EventStream, FailedEvent, streamEvent } from '#core/api/streams.ts'
import { RecordedFailure } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Caller } from '#core/iam/caller.ts'
import { Approval, type ApprovalRow, approvalKind } from '#execution/approvals/model.ts'
import { generationKind } from '#execution/generations/model.ts'
import { readPendingCalls, type TurnProgress } from '#execution/generations/streams/turn-text.ts'
import { DEFAULT_LABEL } from '#execution/generations/tools/tool-calls.ts'
import { shownOrigins } from './end-user.ts'
import type { SessionFrame } from './frame-store.ts'
import { findSession, sessionKind } from './kind.ts'
import { Session, SessionMessage, type SessionRow } from './model.ts'

/** Events of session streams: schemas, and what a reader sees of each. */

const generation_id = z.string().describe('ID of the turn')
const document_id = z.string().describe('ID of the message')
const message = SessionMessage.describe('Message in its current state')

/** Fields of a session that a reader without `sessions:GetSession` sees. */
const VISIBLE = [
  'id',
  'agent_id',
  'status',
  'name',
  'created_at',
  'updated_at',
  'last_activity_at',
  'unread_count',
  'control',
  'attention',
] as const
const StreamedSession = z.union([
  Session,
  Session.pick(Object.fromEntries(VISIBLE.map(name => [name, true])) as { [name in (typeof VISIBLE)[number]]: true })
    .strict()
    .meta({ id: 'SessionSummary' }),
])

const TypingState = z.enum(['started', 'stopped'])

const events: EventSchema[] = [
  streamEvent(
    'SessionReadyEvent',
    'ready',
    'First event: the state from which the stream continues',
    z.object({
      session: StreamedSession.describe('The session'),
      generation_id: z.string().nullable().describe('ID of the running turn. Null if none is running.'),
      position: z.int().nullable().describe('Position of the last message. Null without messages.'),
    }),
  ),
  streamEvent(
    'SessionGapEvent',
    'gap',
    'The requested position is no longer stored: read the messages, then continue with the stream',
    z.object({ after: z.int().describe('The requested position') }),
  ),
  streamEvent('SessionMessageEvent', 'message', 'Message added', message),
  streamEvent('SessionMessageUpdatedEvent', 'message_updated', 'Message changed', z.object({ document_id, message })),
  streamEvent('SessionMessageDeletedEvent', 'message_deleted', 'Message deleted', z.object({ document_id })),
  streamEvent('SessionTurnStartedEvent', 'turn_started', 'Turn started or resumed', z.object({ generation_id })),
  streamEvent(
    'SessionTurnTextEvent',
    'turn_text',
    'Text of the running step so far, in place of earlier text',
    z.object({ generation_id, text: z.string().describe('Text of the step') }),
  ),
  streamEvent(
    'SessionDeltaEvent',
    'delta',
    'Part of the text, to append',
    z.object({
      generation_id,
      choices: z
        .array(
          z.object({
            index: z.int().describe('Always 0'),
            delta: z.object({ content: z.string().describe('Text to append') }).describe('Change of the text'),
          }),
        )
        .describe('List with one entry'),
    }),
  ),
  streamEvent(
    'SessionToolEvent',
    'tool',
    'Tool call started or ended',
    z.object({
      generation_id,
      tool_call_id: z.string().describe('ID of the tool call, from the model'),
      state: z.enum(['started', 'ended']).describe('State of the call'),
      label: z.string().describe('Activity for end users, from the binding of the tool'),
      ok: z.boolean().optional().describe('Whether the call succeeded; when it has ended'),
      tool_name: z.string().optional().describe('Name of the tool; requires `generations:GetGeneration`'),
    }),
  ),
  streamEvent(
    'SessionRequiresActionEvent',
    'requires_action',
    'Turn paused until tool outputs are submitted',
    z.object({
      generation_id,
      tool_calls: z.array(z.record(z.string(), z.unknown())).describe('Calls for the client; empty once submitted'),
    }),
  ),
  streamEvent(
    'SessionTurnCompletedEvent',
    'turn_completed',
    'Turn completed',
    z.object({ generation_id, document_id: document_id.describe('ID of the reply') }),
  ),
  streamEvent(
    'SessionTurnFailedEvent',
    'turn_failed',
    'Turn failed',
    z.object({ generation_id, error: RecordedFailure.nullable().describe('Failure. Null once it was erased.') }),
  ),
  streamEvent('SessionApprovalEvent', 'approval', 'Approval of a call filed or decided', Approval),
  streamEvent(
    'SessionControlEvent',
    'control',
    'Control of the session, or the request for a person, changed',
    Session.pick({ control: true, assigned_to: true, attention: true })
      .partial({ assigned_to: true })
      .extend({ reason: z.literal('timeout').optional().describe('`timeout` — the operator did not write in time') }),
  ),
  streamEvent('SessionChangedEvent', 'session', 'Session renamed, closed, reopened or expired', StreamedSession),
  streamEvent(
    'SessionTypingEvent',
    'typing',
    'End user, operator or agent is typing',
    z.object({
      who: z.enum(['end_user', 'operator', 'agent']).describe('Side of the conversation'),
      state: TypingState.describe('Whether typing has started or stopped'),
      actor_id: z.string().optional().describe('ID of the end user'),
    }),
  ),
  FailedEvent,
]

export const sessionEvents: EventStream = {
  name: 'SessionStreamEvent',
  events,
  last: ['error'],
  resume: 'streamSession',
}

/** Side of a conversation whose people type. */
export type TypingSide = 'end_user' | 'operator'
export type Typing = { who: TypingSide | 'agent'; state: z.output<typeof TypingState>; actor_id?: string }

/** What a reader may see. */
export type ReaderAccess = {
  /** The whole session record. */
  session: boolean
  /** Names of tools. */
  tools: boolean
  approvals: boolean
  /** Whether messages of some origins are hidden. */
  hidden: boolean
  /** Side whose typing is not shown; null for a key, which may serve both. */
  side: TypingSide | null
}

/** Returns what a caller that may read the messages of a session sees of its stream. */
export function readerAccess(caller: Caller, session: SessionRow): ReaderAccess {
  const { project_id } = session
  const { end_user } = caller
  if (end_user)
    return {
      // Narrowed by the view of end users.
      session: true,
      tools: false,
      approvals: end_user.scopes.includes('approvals'),
      hidden: true,
      side: 'end_user',
    }
  return {
    session: isAllowed(caller, 'sessions:GetSession', { kind: sessionKind, row: session }),
    tools: isAllowed(caller, 'generations:GetGeneration', { kind: generationKind, project_id }),
    approvals: isAllowed(caller, 'approvals:GetApproval', { kind: approvalKind, project_id }),
    hidden: false,
    side: caller.credential.type === 'user' ? 'operator' : null,
  }
}

/** A stored event with the records that only some events need. */
export type ResolvedFrame = SessionFrame & {
  session?: SessionRow | null
  approval?: ApprovalRow | null
  tool_calls?: unknown[]
}

/** Reads the further records of an event. */
export async function resolveFrame(services: Services, sessionId: string, frame: SessionFrame): Promise<ResolvedFrame> {
  const { event, approval_id, generation_id } = frame
  if (event === 'session' || event === 'control')
    return { ...frame, session: await findSession(services.pool, sessionId) }
  if (event === 'approval') return { ...frame, approval: await approvalKind.find(services.pool, approval_id as string) }
  if (event === 'requires_action' && generation_id !== null)
    return { ...frame, tool_calls: await readPendingCalls(services, generation_id) }
  return frame
}

/** Formats an event; without an id it is not stored. */
const format = (event: string, data: unknown, id: number | null = null): string =>
  eventMessage(id, event, JSON.stringify(data))

const sessionView = (session: SessionRow, access: ReaderAccess) =>
  access.session ? sessionKind.present(session) : Object.fromEntries(VISIBLE.map(name => [name, session[name]]))

const controlView = ({ control, assigned_to, attention }: SessionRow, access: ReaderAccess) => ({
  control,
  ...(access.session && { assigned_to }),
  attention,
})

export const readyEvent = (
  state: { session: SessionRow; generation_id: string | null; position: number | null },
  access: ReaderAccess,
  id: number,
): string => format('ready', { ...state, session: sessionView(state.session, access) }, id)

export const gapEvent = (after: number): string => format('gap', { after })

export const failureEvent = (failure: RecordedFailure, id: number): string => format('error', failure, id)

export const typingEvent = (typing: Typing): string => format('typing', typing)

export const turnTextEvent = (generation_id: string, text: string): string =>
  format('turn_text', { generation_id, text })

/** Formats the progress of a turn; null if the reader does not see it. */
export function progressEvent(generation_id: string, progress: TurnProgress, access: ReaderAccess): string | null {
  if (progress.type === 'text') return turnTextEvent(generation_id, progress.text)
  if (progress.type === 'delta')
    return format('delta', { generation_id, choices: [{ index: 0, delta: { content: progress.text } }] })
  const { tool_call_id, tool_name, label, ok } = progress
  if (label === undefined && !access.tools) return null
  return format('tool', {
    generation_id,
    tool_call_id,
    state: ok === undefined ? 'started' : 'ended',
    label: label ?? DEFAULT_LABEL,
    ...(ok !== undefined && { ok }),
    ...(access.tools && { tool_name }),
  })
}

/** Formats a stored event; null if the reader does not see it, or if its record is gone. */
export function frameEvent(frame: ResolvedFrame, access: ReaderAccess): string | null {
  const data = frameData(frame, access)
  return data && format(frame.event, data, frame.seq)
}

function frameData(frame: ResolvedFrame, access: ReaderAccess): object | null {
  const { event, document_id, generation_id, message, session, approval, data } = frame
  // Of a deleted message the origin is in the event.
  const origin = message?.origin ?? data?.origin
  if (access.hidden && origin !== undefined && !(shownOrigins as readonly unknown[]).includes(origin)) return null
  const shown = message && { ...message, created_at: new Date(message.created_at).toISOString() }
  switch (event) {
    case 'message':
      return shown
    case 'message_updated':
      return shown && { document_id, message: shown }
    case 'message_deleted':
      return { document_id }
    case 'turn_started':
      return { generation_id }
    case 'turn_completed':
      return { generation_id, document_id }
    case 'turn_failed':
      return { generation_id, error: frame.error }
    case 'requires_action':
      return { generation_id, tool_calls: frame.tool_calls ?? [] }
    case 'session':
      return session ? sessionView(session, access) : null
    case 'approval':
      return approval && access.approvals ? approvalKind.present(approval) : null
    default:
      return session ? { ...controlView(session, access), ...data } : null
  }
}
