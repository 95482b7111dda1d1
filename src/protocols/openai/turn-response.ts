import { ownsSession } from '#conversation/sessions/end-user.ts'
import { findSession, sessionKind } from '#conversation/sessions/kind.ts'
import { type OperationResult, result } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Outbox } from '#core/writes/writer.ts'
import { type GenerationRow, generationKind } from '#execution/generations/model.ts'
import { type SubmitResponse, submitToolOutputs } from '#execution/generations/request/tool-outputs.ts'
import { subscribeTurn } from '#execution/generations/request/wait-for-turn.ts'
import { listVoidTexts } from '#execution/generations/streams/frame-store.ts'
import { streamTurn } from '#execution/generations/streams/stream.ts'
import type { TurnEnd } from '#execution/generations/streams/turn-end.ts'
import { UnrepeatableTurnError } from './error-body.ts'
import { awaitFirstChunk, startingWithText } from './first-chunk.ts'
import { modelNotFound } from './models.ts'
import { trailingResults } from './paused-turn.ts'
import { SEND_ACTION } from './session.ts'
import { readTurnAnswer } from './turn-answer.ts'
import type { TurnContext, TurnIds } from './turn-call.ts'
import { turnFormat } from './turn-format.ts'
import { findTurnRequest, recordTurnRequest, type TurnRequest } from './turn-requests.ts'

/** Responses with new turns, resumed turns, and turns of repeated requests. */

/** Writes the audit entry of the request and what a retry of it attaches to. */
export function recordTurn(context: TurnContext, outbox: Outbox, turn: TurnRequest): void {
  context.record(outbox, 200, { made: { generation_id: turn.generation_id } })
  recordTurnRequest(outbox, context.body.identity, turn)
}

/** Creates a turn and responds with its answer, as a whole or as a stream. */
export async function respondWithNewTurn(
  context: TurnContext,
  make: (generationId: string) => Promise<TurnIds>,
): Promise<OperationResult> {
  return presentTurn(context, newId(generationKind.prefix), 0, async generation_id => {
    await make(generation_id)
    return 0
  })
}

/**
 * Responds with the answer of a turn.
 * @param make creates or resumes the turn after the subscription to its end, and returns the frames before the request;
 *   for an existing turn these frames
 */
async function presentTurn(
  context: TurnContext,
  generationId: string,
  afterStep: number,
  make: ((generationId: string) => Promise<number>) | { after_frame: number },
): Promise<OperationResult> {
  const { services, body, request } = context
  const model = body.request.model
  const presented = { generation_id: generationId, model, afterStep }
  const isNew = typeof make === 'function'
  if (body.stream) {
    const after = isNew ? await make(generationId) : make.after_frame
    const state = { started: false }
    const voids = isNew ? [] : await listVoidTexts(services.pool, generationId)
    const chunks = startingWithText(body.stream(generationId, state, afterStep), state)
    const format = turnFormat(chunks, { ...presented, voids })
    const streamed = streamTurn(context, { id: generationId }, after, format)
    await awaitFirstChunk(streamed.stream ?? raise('INTERNAL_ERROR'))
    state.started = true
    return streamed
  }
  if (body.background && isNew) {
    await make(generationId)
    return result(200, { queued: generationId })
  }
  const subscription = subscribeTurn(services, generationId)
  let after: number | undefined
  try {
    if (isNew) after = await make(generationId)
  } catch (error) {
    subscription.cancel()
    throw error
  }
  const ended = await subscription.wait({ closed: request.closed, after })
  return result(200, await readTurnAnswer(services, requireEnded(ended, generationId), { model, afterStep }))
}

/** Returns a turn that ended within the wait. The turn of another continues: its request must not be repeated. */
const requireEnded = (ended: TurnEnd | null, generation_id: string): TurnEnd => {
  if (ended) return ended
  throw new UnrepeatableTurnError('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id } })
}

/** Requires that the caller may send to the session of a turn. @throws RESOURCE_NOT_FOUND, FORBIDDEN */
async function requireTurn({ services, allow, caller }: TurnContext, { session_id, agent_id }: GenerationRow) {
  const session = session_id === null ? null : await findSession(services.pool, session_id)
  if (session) allow(SEND_ACTION, { kind: sessionKind, row: session })
  const { end_user } = caller
  if (end_user && !(session && ownsSession(session, end_user))) throw modelNotFound(agent_id)
}

/** Submits the results of the client's tools and responds with the rest of the turn. */
export async function resumeTurn(context: TurnContext, generation: GenerationRow): Promise<OperationResult> {
  const { body } = context
  const { session_id, project_id, step_count } = generation
  await requireTurn(context, generation)
  body.report.session_id = session_id
  Object.assign(context.audit, { project_id })
  // The paused step has been presented already.
  const afterStep = step_count + 1
  const respond: SubmitResponse['respond'] = (_context, _mode, make) =>
    presentTurn(context, generation.id, afterStep, async id => (await make(id)).frames ?? 0)
  const record: TurnContext['record'] = (outbox, status, effect) => {
    context.record(outbox, status, effect)
    const frames = 'made' in effect ? (effect.made as { frames?: number }).frames : 0
    const turn = { generation_id: generation.id, after_step: afterStep, after_frame: frames ?? 0 }
    recordTurnRequest(outbox, body.identity, turn)
  }
  return submitToolOutputs(
    { ...context, record, query: { wait: true } },
    generation,
    { tool_outputs: trailingResults(body.request.messages), stream: body.stream !== null },
    {},
    { respond, streamsObjects: true },
  )
}

/** Responds to a repeated request with its turn; null if there is none, or if it failed before any tool call. */
export async function attachToTurn(context: TurnContext): Promise<OperationResult | null> {
  const { services, body } = context
  const found = body.isRetry ? await findTurnRequest(services.pool, body.identity) : null
  const turn = found && (await generationKind.find(services.pool, found.generation_id))
  if (!found || !turn || (turn.status === 'failed' && turn.step_count === 0)) return null
  await requireTurn(context, turn)
  body.report.session_id = turn.session_id
  return presentTurn(context, turn.id, found.after_step, found)
}
