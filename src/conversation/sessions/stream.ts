import { itemOperation, streamResult } from '#core/api/operation.ts'
import {
  consumeStreamTicket,
  StreamQuery,
  streamPosition,
  ticketOperation,
} from '#execution/generations/streams/tickets.ts'
import { sessionAccess, streamAccess } from './end-user.ts'
import { sessionKind } from './kind.ts'
import { sessionEvents } from './stream-events.ts'
import { sessionStreams } from './stream-hub.ts'

const ACTION = 'sessions:ListSessionMessages'

export const streamOperation = itemOperation(sessionKind, {
  id: 'streamSession',
  method: 'get',
  path: '/sessions/{session_id}/stream',
  summary: 'Stream session events',
  description:
    'Returns messages, turns, approvals and changes of the session as server-sent events, regardless of their cause, until the client disconnects or the session is deleted. Continues after the event in the Last-Event-ID header or in last_event_id. Open the stream first, then read the messages.',
  tag: 'Sessions',
  action: ACTION,
  alsoActions: ['sessions:GetSession', 'generations:GetGeneration', 'approvals:GetApproval'],
  query: StreamQuery,
  answers: { 200: null },
  stream: sessionEvents,
  raises: ['STREAM_LIMIT_EXCEEDED', 'SERVICE_NOT_READY'],
  ticket: consumeStreamTicket,
  endUser: streamAccess,
  internal: true,
  async run(context) {
    const reader = await sessionStreams(context.services).open(context, streamPosition(context))
    return streamResult('text/event-stream', reader.output, { 'Cache-Control': 'no-store' })
  },
})

export const sessionTicketOperation = ticketOperation(sessionKind, {
  id: 'createSessionStreamTicket',
  command: ['sessions', 'create-stream-ticket'],
  path: '/sessions/{session_id}/stream-tickets',
  summary: 'Create a session stream ticket',
  tag: 'Sessions',
  action: ACTION,
  endUser: sessionAccess(),
})
