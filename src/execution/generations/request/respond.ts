import { z } from 'zod'
import type { Made } from '#core/api/idempotency.ts'
import { booleanQuery } from '#core/api/lists.ts'
import { type Context, type OperationResult, result } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { ignoredParamsHeader } from '#execution/providers/ignored-params.ts'
import { replayWhileContentKept } from '../erase/purge.ts'
import { generationKind, type TurnData } from '../model.ts'
import { streamTurn } from '../streams/stream.ts'
import type { TurnEnd } from '../streams/turn-end.ts'
import { raiseFailure, subscribeTurn } from './wait-for-turn.ts'

/** `wait=true|false`; other values are rejected. */
export const WaitQuery = z.object({
  wait: booleanQuery.optional().describe('Whether to respond when the turn ends instead of immediately'),
})

/** How a caller receives the response of a turn. */
export type ResponseMode = 'background' | 'wait' | 'stream'

/** Returns the response mode of a request. @throws VALIDATION_FAILED for `stream` with `wait=false` */
export function responseMode(stream: boolean | undefined, wait: boolean | undefined): ResponseMode {
  if (!stream) return wait ? 'wait' : 'background'
  if (wait === false)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'wait', message: 'cannot be false for a streamed turn' })
  return 'stream'
}

/** Returns whether a caller waits for a turn, and how long the turn then waits for its model. */
export const waitOf = (mode: ResponseMode): Pick<TurnData, 'patience' | 'awaited'> =>
  mode === 'wait' ? { patience: 'caller', awaited: true } : {}

/** Returns the status of the response after the turn was created, for its audit entry. */
export const createdStatus = (mode: ResponseMode): number => (mode === 'background' ? 202 : 200)

/**
 * Creates a turn and responds in the caller's mode: with its ids, its result, or its event stream. A caller that waits
 * longer than SYNC_WAIT_SECONDS gets the ids; a disconnect does not affect the turn. Raises errors of `make` and, with
 * `wait`, the failure of the turn.
 * @param make creates the turn with the given generation id, records that id and the frames for repeats, and returns
 *   the ids for a background caller; `frames` is the number of frames that the stream skips
 * @param generationId of an existing turn that is resumed
 */
export async function respondWithTurn(
  context: Pick<Context, 'services' | 'request' | 'recheck' | 'client'>,
  mode: ResponseMode,
  make: (generationId: string) => Promise<{ generation_id: string; trace_id: string; frames?: number }>,
  generationId = newId(generationKind.prefix),
): Promise<OperationResult> {
  const { services, request } = context
  // Subscribes before the turn exists, so that its end is neither missed nor polled.
  const subscription = mode === 'wait' ? subscribeTurn(services, generationId) : null
  let made: object
  let after = 0
  try {
    const { frames = 0, ...ids } = await make(generationId)
    made = ids
    after = frames
  } catch (error) {
    subscription?.cancel()
    throw error
  }
  if (mode === 'stream') return streamTurn(context, { id: generationId }, after)
  const ended = await subscription?.wait({ closed: request.closed, after })
  return responseOf(services, result(202, { status: 'accepted', ...made }), ended ?? null)
}

/**
 * Responds to a repeated request whose first response was lost, in the caller's mode.
 * @param made as recorded by `make` of respondWithTurn: `generation_id`, and the `frames` that the stream skips
 * @param extraFields ids added to the response
 */
export async function replayTurnResponse(
  context: Pick<Context, 'services' | 'request' | 'recheck' | 'client'>,
  mode: ResponseMode,
  made: Made,
  extraFields: object = {},
): Promise<OperationResult> {
  const { services, request } = context
  const { generation_id: id, frames = 0 } = made as { generation_id: string; frames?: number }
  if (mode === 'stream') return streamTurn(context, { id }, frames)
  const turn = await generationKind.find(services.pool, id)
  if (!turn) return raise('RESOURCE_NOT_FOUND', { message: `Generation ${id} not found`, meta: { id } })
  const accepted = result(202, { status: 'accepted', ...extraFields, generation_id: id, trace_id: turn.trace_id })
  const ended = mode === 'wait' ? await subscribeTurn(services, id).wait({ closed: request.closed }) : null
  return responseOf(services, accepted, ended)
}

/** Returns the response with the result of a turn, or `accepted` if it was not awaited or the wait timed out. */
function responseOf(services: Services, accepted: OperationResult, ended: TurnEnd | null): OperationResult {
  if (!ended) return accepted
  if (ended.failure) raiseFailure(ended)
  const { ignored_params } = (ended.result ?? {}) as { ignored_params?: string[] }
  const done = result(200, ended.result, ignoredParamsHeader(services, ignored_params))
  // Content that must not be stored is not stored for a repeat either: a repeat gets the ids.
  return ended.content_mode === 'none'
    ? { ...done, kept: accepted }
    : { ...done, keptWhile: replayWhileContentKept(ended.id) }
}
