import { z } from 'zod'
import { turnEvents } from '../../execution/generations/streams/events.ts'
import { ConversationMessage } from '../conversations/model.ts'

/** What a caller that waits for a turn gets, and what ends its stream. */
export const TurnResult = z
  .object({
    status: z.enum(['completed', 'requires_action']),
    content: z.string().nullable(),
    message: z.object({ ...ConversationMessage.shape, model: z.string().nullable() }).nullable(),
    model: z.string().nullable(),
    generation_id: z.string().nullable(),
    trace_id: z.string().nullable(),
    required_action: z.record(z.string(), z.unknown()).nullish(),
  })
  .meta({ id: 'TurnResult' })

/** The events of turns of sessions and conversations. */
export const conversationTurnEvents = turnEvents('ConversationTurn', TurnResult)

/** The answer of a turn that nobody waits for, or that took longer than its caller was made to wait. */
export const AcceptedReply = z
  .object({
    status: z.literal('accepted'),
    session_id: z.string().optional(),
    conversation_id: z.string().optional(),
    generation_id: z.string().nullable().describe('Null for the reply of a chat'),
    trace_id: z.string().nullable(),
  })
  .meta({ id: 'AcceptedTurn' })
