import type { z } from 'zod'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import type { Context, OperationResult } from '../../core/api/operation.ts'
import { callerContext } from '../../core/api/tool-context.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { Services } from '../../core/process/services.ts'
import { checkOverlay } from '../../execution/agents/knowledge.ts'
import { admitTurn } from '../../execution/generations/request/admission.ts'
import { createdStatus, respondWithTurn, responseMode } from '../../execution/generations/request/respond.ts'
import { cancelTurns, endCancelledTurns, enqueueTurn, mailboxState, refuseSelfWait } from '../turns/mailbox.ts'
import type { TurnRow } from '../turns/store.ts'
import type { ON_BUSY, SessionGenerateInput, SessionRow } from './model.ts'
import { INTERRUPTED, lockSessionAndConversation, ROLLED_BACK, requireOpen } from './session-locks.ts'
import { incrementTakeovers } from './store.ts'
import { turnContext, turnInput } from './turns.ts'

type OnBusy = (typeof ON_BUSY)[number]

/** Most turns that `on_busy: queue` lets wait. */
const MAX_WAITING = 20

/**
 * POST of a generate. All that can refuse it is decided under the conversation's lock, so
 * of any number of concurrent calls exactly one starts.
 * @throws SESSION_CLOSED, SESSION_EXPIRED, GENERATION_ALREADY_IN_PROGRESS with `meta { generation_id }`,
 * OUTPUT_SCHEMA_STREAMING_UNSUPPORTED, PROJECT_PAUSED; with `wait` what the turn failed with
 */
export async function generateInSession(
  context: Pick<
    Context<{ wait?: boolean }, z.output<typeof SessionGenerateInput> | undefined, SessionRow>,
    'services' | 'allow' | 'caller' | 'body' | 'query' | 'resource' | 'request' | 'record' | 'recheck' | 'origin'
  >,
): Promise<OperationResult> {
  const { services, caller, query, resource, request } = context
  const body = context.body ?? {}
  const mode = responseMode(body.stream, query.wait)
  refuseSelfWait(context.origin, resource.conversation_id)
  const sent = callerContext(body.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
  return respondWithTurn(context, mode, async generation_id => {
    const { trace_id } = await services.write(async tx => {
      const { session, conversation } = await lockSessionAndConversation(tx, resource)
      requireOpen(session)
      const agent = await admitTurn(tx, services, { ...session, session_id: session.id })
      if (mode === 'stream' && agent.output_schema) raise('OUTPUT_SCHEMA_STREAMING_UNSUPPORTED')
      if (conversation.message_count === 0)
        raiseInvalid({ code: 'INVALID_VALUE', path: '', message: 'the session has no messages' })
      if (body.knowledge_config)
        await checkOverlay(
          { tx, allow: context.allow },
          agent,
          session.project_id,
          body.knowledge_config,
          session.knowledge_config,
        )
      await resolveBusyMode(tx, services, session, body.on_busy ?? 'reject', {
        at: request.receivedAt,
        takeovers: resource.takeovers,
      })
      const input = turnInput(session, caller, {
        generation_id,
        tool_context: turnContext(session, sent),
        model: body.model,
        knowledge_config: body.knowledge_config,
        streamed: mode === 'stream',
        origin: context.origin,
      })
      context.record(tx, createdStatus(mode), { made: { generation_id } })
      return enqueueTurn(tx, services, conversation, { kind: 'turn', input })
    })
    return { session_id: resource.id, generation_id, trace_id }
  })
}

/**
 * Decides what a turn that runs, or is due, means to the one that was asked for, and takes out of the mailbox what the
 * new one answers for: an automatic turn that still waits out its delay, an aborted turn.
 * @param asked when the request came in, and the takeovers it found then
 */
async function resolveBusyMode(
  tx: Tx,
  services: Services,
  session: SessionRow,
  onBusy: OnBusy,
  asked: { at: Date; takeovers: number },
): Promise<void> {
  const { running, queued } = await mailboxState(tx, session.conversation_id)
  const due = queued.filter(turn => turn.due)
  const first = running ?? due[0]
  if (first) {
    if (onBusy === 'reject' || (onBusy === 'queue' && due.length >= MAX_WAITING)) busyWith(first)
    if (onBusy === 'interrupt' || onBusy === 'rollback') {
      // Of concurrent callers one takes over: the others had come in before its turn was there, however late they are.
      const later = session.takeovers !== asked.takeovers || new Date(first.created_at) > asked.at
      if (first.abort || later) busyWith(first)
      await cancelTurns(tx, services, [first], onBusy === 'interrupt' ? INTERRUPTED : ROLLED_BACK)
      await incrementTakeovers(tx, session.id)
    }
  }
  const idle = queued.filter(turn => turn.kind === 'auto' && !turn.due)
  if (idle.length > 0) await endCancelledTurns(tx, services, idle)
}

const busyWith = ({ generation_id }: TurnRow): never =>
  raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id } })
