import type { z } from 'zod'
import type { ClientInput } from '#core/api/call.ts'
import type { Context, OperationResult } from '#core/api/operation.ts'
import { callerContext } from '#core/api/tool-context.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { principalRecord } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { checkOverlay } from '#execution/agents/knowledge.ts'
import { generationKind } from '#execution/generations/model.ts'
import { admitTurn } from '#execution/generations/request/admission.ts'
import { createdStatus, respondWithTurn, responseMode, waitOf } from '#execution/generations/request/respond.ts'
import { streamTurn } from '#execution/generations/streams/stream.ts'
import {
  cancelTurns,
  endCancelledTurns,
  enqueueTurn,
  findMailboxState,
  refuseSelfWait,
  requireAgentControl,
} from '../dialog/mailbox/mailbox.ts'
import type { TurnRow } from '../dialog/mailbox/store.ts'
import type { ON_BUSY, SessionGenerateInput, SessionRow } from './model.ts'
import { INTERRUPTED, lockSessionAndConversation, ROLLED_BACK, requireOpen } from './session-locks.ts'
import { incrementTakeovers } from './store.ts'
import { turnContext } from './turn-context.ts'
import { turnInput } from './turns.ts'

type OnBusy = (typeof ON_BUSY)[number]

/** Most queued turns with `on_busy: queue`. */
const MAX_QUEUED = 20

/**
 * Generates a reply in a session. All refusals are decided under the conversation's lock, so that exactly one of
 * several concurrent calls starts a turn.
 * @throws SESSION_CLOSED, SESSION_EXPIRED, SESSION_UNDER_OPERATOR, GENERATION_ALREADY_IN_PROGRESS with
 *   `meta { generation_id }`, OUTPUT_SCHEMA_STREAMING_UNSUPPORTED, PROJECT_PAUSED; with `wait` the failure of the turn
 */
export async function generateInSession(
  context: Pick<
    Context<{ wait?: boolean }, z.output<typeof SessionGenerateInput> | undefined, SessionRow>,
    | 'services'
    | 'allow'
    | 'caller'
    | 'body'
    | 'query'
    | 'resource'
    | 'request'
    | 'record'
    | 'recheck'
    | 'origin'
    | 'client'
  >,
): Promise<OperationResult> {
  const { services, caller, query, resource, request, client } = context
  if (client?.attach) return attachToTurn(context, client.attach)
  const body = context.body ?? {}
  const mode = responseMode(body.stream, query.wait)
  refuseSelfWait(context.origin, resource.conversation_id)
  const requestContext = callerContext(body.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
  return respondWithTurn(context, mode, async generation_id => {
    const { trace_id } = await services.write(async tx => {
      const { session, conversation } = await lockSessionAndConversation(tx, resource)
      requireOpen(session)
      requireAgentControl(session)
      await client?.claim?.(tx, { generation_id, after: 0 })
      const agent = await admitTurn(tx, services, { ...session, session_id: session.id })
      if (mode === 'stream' && agent.output_schema) raise('OUTPUT_SCHEMA_STREAMING_UNSUPPORTED')
      if (conversation.message_count === 0)
        raiseInvalid({ code: 'INVALID_VALUE', path: '', message: `session ${session.id} has no messages` })
      if (body.knowledge_config)
        await checkOverlay(
          { tx, allow: context.allow },
          agent,
          session.project_id,
          body.knowledge_config,
          session.knowledge_config,
        )
      await resolveBusyMode(tx, services, session, body.on_busy ?? (client?.queue ? 'queue' : 'reject'), {
        at: request.receivedAt,
        takeovers: resource.takeovers,
      })
      const input = turnInput(session, principalRecord(caller), {
        generation_id,
        tool_context: turnContext(session, requestContext),
        model: body.model,
        knowledge_config: body.knowledge_config,
        client: client && { context: client.context, tools: agent.accept_client_tools ? client.tools : undefined },
        streamed: mode === 'stream',
        ...waitOf(mode),
        // Clients of other protocols repeat their requests.
        ...(client && { patience: 'none' }),
        origin: context.origin,
      })
      context.record(tx, createdStatus(mode), { made: { generation_id } })
      return enqueueTurn(tx, services, conversation, { kind: 'turn', input })
    })
    return { session_id: resource.id, generation_id, trace_id }
  })
}

/** Streams a turn of the session. @throws GENERATION_NOT_FOUND */
async function attachToTurn(
  context: Pick<Context<unknown, unknown, SessionRow>, 'services' | 'request' | 'recheck' | 'client' | 'resource'>,
  { generation_id, after }: NonNullable<ClientInput['attach']>,
): Promise<OperationResult> {
  const { services, resource } = context
  const turn = await generationKind.find(services.pool, generation_id)
  if (turn?.session_id !== resource.id) return raise('GENERATION_NOT_FOUND', { meta: { id: generation_id } })
  return streamTurn(context, turn, after)
}

/**
 * Refuses the request, or ends turns that the new one replaces, according to `on_busy`: the running or due turn, and an
 * automatic turn whose delay has not passed.
 * @param request when it arrived, and the number of takeovers at that time
 */
async function resolveBusyMode(
  tx: Tx,
  services: Services,
  session: SessionRow,
  onBusy: OnBusy,
  request: { at: Date; takeovers: number },
): Promise<void> {
  const { running, queued } = await findMailboxState(tx, session.conversation_id)
  const due = queued.filter(turn => turn.due)
  const first = running ?? due[0]
  if (first) {
    if (onBusy === 'reject' || (onBusy === 'queue' && due.length >= MAX_QUEUED)) raiseBusy(first)
    if (onBusy === 'interrupt' || onBusy === 'rollback') {
      // Of concurrent callers one takes over: the others arrived before its turn existed.
      const isOutdated = session.takeovers !== request.takeovers || new Date(first.created_at) > request.at
      if (first.abort || isOutdated) raiseBusy(first)
      await cancelTurns(tx, services, [first], onBusy === 'interrupt' ? INTERRUPTED : ROLLED_BACK)
      await incrementTakeovers(tx, session.id)
    }
  }
  const delayed = queued.filter(turn => turn.kind === 'auto' && !turn.due)
  if (delayed.length > 0) await endCancelledTurns(tx, services, delayed)
}

const raiseBusy = ({ generation_id }: TurnRow): never =>
  raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id } })
