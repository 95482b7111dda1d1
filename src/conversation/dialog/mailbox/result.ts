import { z } from 'zod'
import { IgnoredParams } from '#execution/generations/request/turn-result.ts'
import { turnEvents } from '#execution/generations/streams/events.ts'
import { ConversationMessage } from '../messages/model.ts'

/** Result of a turn in a conversation, for waiting callers and the last stream event. */
export const TurnResult = z
  .object({
    status: z.enum(['completed', 'requires_action']),
    content: z.string().nullable(),
    message: z.object({ ...ConversationMessage.shape, model: z.string().nullable() }).nullable(),
    model: z.string().nullable(),
    generation_id: z.string().nullable(),
    trace_id: z.string().nullable(),
    required_action: z.record(z.string(), z.unknown()).nullish(),
    ignored_params: IgnoredParams,
  })
  .meta({ id: 'TurnResult' })

/** Stream events of turns in sessions and conversations. */
export const conversationTurnEvents = turnEvents('ConversationTurn', TurnResult)

/** Response without the result: the turn is not awaited or the wait timed out. */
export const AcceptedReply = z
  .object({
    status: z.literal('accepted'),
    session_id: z.string().optional(),
    conversation_id: z.string().optional(),
    generation_id: z.string().nullable().describe('ID of the generation. Null for chat replies.'),
    trace_id: z.string().nullable(),
  })
  .meta({ id: 'AcceptedTurn' })
