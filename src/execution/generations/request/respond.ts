import { z } from 'zod'
import { raise, raiseInvalid } from '../../../core/api/errors.ts'
import type { Made } from '../../../core/api/idempotency.ts'
import { newId } from '../../../core/api/ids.ts'
import { booleanQuery } from '../../../core/api/lists.ts'
import { type Context, type OperationResult, result } from '../../../core/api/operation.ts'
import { replayWhileContentKept } from '../erase/purge.ts'
import { generationKind } from '../model.ts'
import { streamTurn } from '../streams/stream.ts'
import { raiseFailure, subscribeTurn, type TurnEndState } from './wait-for-turn.ts'

/** `wait=true|false`; anything else is refused. */
export const WaitQuery = z.object({
  wait: booleanQuery.optional().describe('Answer at the end of the turn instead of at once'),
})

/** How a caller takes the answer of a turn. */
export type ResponseMode = 'background' | 'wait' | 'stream'

/** The mode a request asks for. Raises VALIDATION_FAILED for a stream that is not to be waited for. */
export function responseMode(stream: boolean | undefined, wait: boolean | undefined): ResponseMode {
  if (!stream) return wait ? 'wait' : 'background'
  if (wait === false) raiseInvalid({ code: 'INVALID_VALUE', path: 'wait', message: 'a streamed turn is waited for' })
  return 'stream'
}

/** The status of an answer that is given once the turn was made, for its audit entry. */
export const createdStatus = (mode: ResponseMode): number => (mode === 'background' ? 202 : 200)

/**
 * Makes a turn and answers in the caller's mode: its ids, its end, or its event stream. A caller that waits longer
 * than SYNC_WAIT_SECONDS gets the ids; one that goes away changes nothing. Raises what `make` raises, and the code of a
 * failed turn that was waited for.
 * @param make makes the turn with the generation id given, records for repeats that id and the frames, and returns the ids that a background caller gets; `frames` are
 *   those of its stream that were there before
 * @param generationId of a turn that there is already and that goes on
 */
export async function respondWithTurn(
  context: Pick<Context, 'services' | 'request' | 'recheck'>,
  mode: ResponseMode,
  make: (generationId: string) => Promise<{ generation_id: string; trace_id: string; frames?: number }>,
  generationId = newId('gen'),
): Promise<OperationResult> {
  const { services, request } = context
  // Listens before the turn exists, so that its end is not missed and need not be looked for.
  const expected = mode === 'wait' ? subscribeTurn(services, generationId) : null
  let made: object
  let after = 0
  try {
    const { frames = 0, ...ids } = await make(generationId)
    made = ids
    after = frames
  } catch (error) {
    expected?.cancel()
    throw error
  }
  if (mode === 'stream') return streamTurn(context, { id: generationId }, after)
  const ended = await expected?.wait({ closed: request.closed, running: true })
  return answerOf(result(202, { status: 'accepted', ...made }), ended ?? null)
}

/**
 * Answers a repeat for a turn that a first request had made when it was lost: its ids, its end, or its event stream.
 * @param made as `answerTurn` had it recorded: `generation_id`, and `frames` of its stream that were there before
 * @param shown ids that the answer shows besides
 */
export async function answerTurnAgain(
  context: Pick<Context, 'services' | 'request' | 'recheck'>,
  mode: ResponseMode,
  made: Made,
  shown: object = {},
): Promise<OperationResult> {
  const { services, request } = context
  const { generation_id: id, frames = 0 } = made as { generation_id: string; frames?: number }
  if (mode === 'stream') return streamTurn(context, { id }, frames)
  const turn = await generationKind.find(services.pool, id)
  if (!turn) return raise('RESOURCE_NOT_FOUND', { message: 'The generation is gone', meta: { id } })
  const accepted = result(202, { status: 'accepted', ...shown, generation_id: id, trace_id: turn.trace_id })
  return answerOf(accepted, mode === 'wait' ? await subscribeTurn(services, id).wait({ closed: request.closed }) : null)
}

/** The answer with the end of a turn; its ids where it was not waited for, or not for long enough. */
function answerOf(accepted: OperationResult, ended: TurnEndState | null): OperationResult {
  if (!ended) return accepted
  if (ended.failure) raiseFailure(ended)
  const done = result(200, ended.result)
  // Content that is not to be stored is not kept for a repeat either: it gets the ids.
  return ended.content_mode === 'none'
    ? { ...done, kept: accepted }
    : { ...done, keptWhile: replayWhileContentKept(ended.id) }
}
