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
import { type AnnouncedEnd, openEnd, type TurnEnd, type TurnEndState } from '../streams/turn-end.ts'
import { readSteps } from '../traces/file.ts'
import { wireStep } from '../traces/store.ts'
import { agentResult, GenerateResult } from './turn-result.ts'

/** Fallback for lost notifications. */
const POLL_MS = 2000

/**
 * Subscribes to the end of a turn before the turn exists. `wait` returns null after SYNC_WAIT_SECONDS or when the
 * client disconnects; the turn continues in both cases. `after` is the number of the last frame before the part of the turn
 * that the caller has started: the turn is not read before the first notification, and not at all if that has the end.
 */
export function subscribeTurn(services: Services, generationId: string) {
  let announced: AnnouncedEnd | null = null
  let startedAfter = Number.POSITIVE_INFINITY
  const { wait, cancel } = subscribeUntil<TurnEnd | null>({
    subscribe: notify =>
      liveTurns(services).watch(generationId, (event, end) => {
        if (event === 'frames') return
        // The notification of an earlier pause may be late.
        if (end && end.seq > (announced?.seq ?? 0)) announced = end
        notify()
      }),
    async read() {
      const known = announced && announced.seq > startedAfter ? openEnd(services, generationId, announced) : null
      return known ?? (await readTurnEnd(services, generationId))
    },
    isOver: ended => ended !== null,
    pollMs: POLL_MS,
  })
  const withinMs = services.config.SYNC_WAIT_SECONDS * 1000
  return {
    cancel,
    wait({ closed, after }: { closed: AbortSignal; after?: number }): Promise<TurnEnd | null> {
      if (after === undefined) return wait({ closed, withinMs })
      startedAfter = after
      return wait({ closed, withinMs, known: null })
    },
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
  if (generation.shape === 'agent') {
    const steps = journalled?.map(wireStep) ?? (await readSteps(services, generation))
    // Gives its fields their order, which jsonb does not keep.
    return GenerateResult.parse(agentResult(generation, steps))
  }
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
export const raiseFailure = ({ failure, id: generation_id, trace_id }: TurnEnd): never =>
  raiseRecorded(failure as RecordedFailure, { generation_id, trace_id })
