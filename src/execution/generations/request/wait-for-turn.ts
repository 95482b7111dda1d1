import { retryAfter } from '#control/quotas/windows.ts'
import { systemClock } from '#core/base/clock.ts'
import { errorEntry, isErrorCode, type RecordedFailure, raise } from '#core/base/errors.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { subscribeUntil } from '#core/work/subscription.ts'
import type { GenerationRow, JournalStepRow } from '../model.ts'
import { findWithResult } from '../store.ts'
import { readFrame } from '../streams/frames.ts'
import { liveTurns } from '../streams/live-turns.ts'
import { readSteps } from '../traces/file.ts'
import { wireStep } from '../traces/store.ts'
import { agentResult } from './turn-result.ts'

/** A settled or paused turn with the response for waiting callers: `result` or, if it failed, `failure`. */
export type TurnEndState = GenerationRow & { result: object | null; failure: RecordedFailure | null }

/** Fallback for lost notifications. */
const POLL_MS = 2000

/**
 * Subscribes to the end of a turn before the turn exists. `wait` returns null after SYNC_WAIT_SECONDS or when the
 * client disconnects; the turn continues in both cases. `running` skips the read before the first notification.
 */
export function subscribeTurn(services: Services, generationId: string) {
  const { wait, cancel } = subscribeUntil<TurnEndState | null>({
    subscribe: notify => liveTurns(services).watch(generationId, event => event !== 'frames' && notify()),
    read: () => readTurnEnd(services, generationId),
    isOver: ended => ended !== null,
    pollMs: POLL_MS,
  })
  const withinMs = services.config.SYNC_WAIT_SECONDS * 1000
  return {
    cancel,
    wait: ({ closed, running }: { closed: AbortSignal; running?: true }): Promise<TurnEndState | null> =>
      wait({ closed, withinMs, known: running && null }),
  }
}

/** Returns a settled or paused turn with its result; null while it is pending or in progress. */
export async function readTurnEnd(services: Services, generationId: string): Promise<TurnEndState | null> {
  const row = await findWithResult(services.pool, generationId)
  if (!row) raise('RESOURCE_NOT_FOUND', { message: `Generation ${generationId} not found`, meta: { id: generationId } })
  const { last_frame, steps, ...generation } = row
  if (generation.status === 'pending' || generation.status === 'in_progress') return null
  const body = last_frame ? (parseExactJson(readFrame(services, generation, last_frame)) as object) : null
  if (generation.status === 'failed') {
    const { error } = generation
    const frameError = body as RecordedFailure | null
    const unknown = { code: 'GENERATION_CONTENT_UNAVAILABLE', message: 'The failure of the turn was not stored' }
    // In content mode `none` the record has only the code.
    const failure = (generation.content_mode === 'none' ? (frameError ?? error) : (error ?? frameError)) ?? unknown
    return { ...generation, result: null, failure }
  }
  return { ...generation, result: body ?? (await recordedResult(services, generation, steps)), failure: null }
}

/** Returns the result from the record, for turns without a last frame. */
async function recordedResult(
  services: Services,
  generation: GenerationRow,
  journalled: readonly JournalStepRow[] | null,
): Promise<object> {
  if (generation.shape === 'agent')
    return agentResult(generation, journalled?.map(wireStep) ?? (await readSteps(services, generation)))
  const { id: generation_id, trace_id, status, output } = generation
  return {
    status,
    content: output?.content ?? null,
    message: null,
    model: output?.model ?? null,
    generation_id,
    trace_id,
    required_action: generation.required_action,
  }
}

/**
 * Raises a recorded failure with `more` in its meta, as GENERATION_FAILED if the code is not in the catalogue. A 429
 * with `resets_at` gets a Retry-After header.
 */
export function raiseRecorded({ code, message, meta }: RecordedFailure, more?: Record<string, unknown>): never {
  const known = isErrorCode(code) ? code : 'GENERATION_FAILED'
  const resets = errorEntry(known).status === 429 ? meta?.resets_at : null
  return raise(known, {
    message,
    meta: more ? { ...meta, ...more } : meta,
    ...(typeof resets === 'string' && { headers: { 'Retry-After': String(retryAfter(resets, systemClock.now())) } }),
  })
}

/** Raises the failure of a failed turn. */
export const raiseFailure = ({ failure, id: generation_id, trace_id }: TurnEndState): never =>
  raiseRecorded(failure as RecordedFailure, { generation_id, trace_id })
