import { retryAfter } from '../../../control/quotas/windows.ts'
import { errorEntry, isErrorCode, type RecordedFailure, raise } from '../../../core/api/errors.ts'
import { subscribeUntil } from '../../../core/jobs/subscription.ts'
import type { Services } from '../../../core/process/services.ts'
import type { GenerationRow } from '../model.ts'
import { findWithResult } from '../store.ts'
import { readFrame } from '../streams/frames.ts'
import { liveTurns } from '../streams/live-turns.ts'
import { readSteps } from '../traces/file.ts'
import { agentResult } from './turn-result.ts'

/** A turn at its end, with what a waiting caller gets: `result` when it completed, `failure` when it failed. */
export type TurnEndState = GenerationRow & { result: object | null; failure: RecordedFailure | null }

/** The floor under the notifications. */
const POLL_MS = 2000

/**
 * Listens for the end of a turn before it exists. `wait` returns null when SYNC_WAIT_SECONDS ran out or the client went
 * away; the turn goes on either way. `running`: the caller knows that it runs, so that nothing is read before a notice.
 */
export function subscribeTurn(services: Services, generationId: string) {
  const { wait, cancel } = subscribeUntil<TurnEndState | null>({
    subscribe: notice => liveTurns(services).watch(generationId, what => what !== 'frames' && notice()),
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

/** The end of a turn as its callers see it; null while it runs. */
export async function readTurnEnd(services: Services, generationId: string): Promise<TurnEndState | null> {
  const row = await findWithResult(services.pool, generationId)
  if (!row) raise('RESOURCE_NOT_FOUND', { message: 'The generation is gone', meta: { id: generationId } })
  const { last_frame, ...generation } = row
  if (generation.status === 'pending' || generation.status === 'in_progress') return null
  const said = last_frame ? (JSON.parse(readFrame(services, generation, last_frame)) as object) : null
  if (generation.status === 'failed') {
    const { error } = generation
    const told = said as RecordedFailure | null
    const unknown = { code: 'GENERATION_CONTENT_UNAVAILABLE', message: 'The failure was not kept' }
    // Where no content is kept the record has the code alone.
    const failure = (generation.content_mode === 'none' ? (told ?? error) : (error ?? told)) ?? unknown
    return { ...generation, result: null, failure }
  }
  return { ...generation, result: said ?? (await recordedResult(services, generation)), failure: null }
}

/** The result built from the record alone, once the frames are gone. */
async function recordedResult(services: Services, generation: GenerationRow): Promise<object> {
  if (generation.shape === 'agent') return agentResult(generation, await readSteps(services, generation))
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
 * Raises the code of a recorded failure, with `more` in its meta; what the catalogue does not know is GENERATION_FAILED. A limit
 * that says when it resets is answered with Retry-After, as where it refuses a request itself.
 */
export function raiseRecorded({ code, message, meta }: RecordedFailure, more?: Record<string, unknown>): never {
  const known = isErrorCode(code) ? code : 'GENERATION_FAILED'
  const resets = errorEntry(known).status === 429 ? meta?.resets_at : null
  return raise(known, {
    message,
    meta: more ? { ...meta, ...more } : meta,
    ...(typeof resets === 'string' && { headers: { 'Retry-After': String(retryAfter(resets, new Date())) } }),
  })
}

/** Raises a failed turn's own code. */
export const raiseFailure = ({ failure, id: generation_id, trace_id }: TurnEndState): never =>
  raiseRecorded(failure as RecordedFailure, { generation_id, trace_id })
