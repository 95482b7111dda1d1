import { systemClock } from '#core/base/clock.ts'
import { retryWhileUnavailable } from '#core/db/retry.ts'
import type { ModelFailure } from '#execution/providers/failure.ts'
import type { GenerationRow, TurnData } from '../model.ts'
import { turnQueue } from '../request/create.ts'
import { TurnClaimLost } from '../streams/live-turns.ts'
import { findRequestedAbort } from './commit-attempt.ts'
import type { TurnAttempt } from './turn-attempt.ts'
import { modelWaitParts } from './turn-store.ts'

/** Waits of turns for models that are overloaded or fail. A waiting turn holds no slot. */

/** Longest time that a turn in the background takes for the model call of a step. */
const MAX_WAIT_MS = 600_000
/** Delay after the first failed attempts that the vendor states no time for; doubled for each further attempt. */
const FIRST_DELAY_MS = 4000

/** Ends an attempt at a turn, which continues at `at`. */
export class ModelWait extends Error {
  readonly at: Date
  /** Failed attempts at the model call. */
  readonly attempts: number
  constructor(at: Date, attempts: number) {
    super('the turn waits for its model')
    this.at = at
    this.attempts = attempts
  }
}

/** Whether a turn must still wait for its model, so that a worker leaves it; an abort ends the wait. */
export const mustWaitForModel = ({ handed_back, model_retry_at, abort }: GenerationRow): boolean =>
  handed_back && model_retry_at !== null && abort === null && new Date(model_retry_at) > systemClock.now()

/**
 * Returns the wait of a turn after a failed model call, or null if the turn fails: the failure will not pass, the attempts
 * are used up, or the vendor requires more time than the turn or its caller has.
 */
export function modelWaitOf(
  { services, generation, data, route }: TurnAttempt,
  failure: ModelFailure,
): ModelWait | null {
  if (failure.class !== 'rate_limited' && failure.class !== 'provider_error') return null
  // A route with several targets has tried them all.
  if (route && route.route.targets.length > 1) return null
  const attempts = generation.model_attempts + (failure.attempts ?? 1)
  if (attempts > services.config.PROVIDER_MAX_RETRIES) return null
  const growing = FIRST_DELAY_MS * 2 ** Math.max(0, attempts - 3) * (0.75 + Math.random() / 2)
  const at = new Date(systemClock.now().getTime() + (failure.retry_after_ms ?? growing))
  return at.getTime() <= endOfPatience(generation, (data as TurnData).patience, services.config.SYNC_WAIT_SECONDS)
    ? new ModelWait(at, attempts)
    : null
}

/** Returns the time until which a turn may wait. */
function endOfPatience(
  { created_at, last_activity_at, deadline_at }: GenerationRow,
  patience: TurnData['patience'],
  callerSeconds: number,
): number {
  if (patience === 'none') return 0
  const deadline = deadline_at ? new Date(deadline_at).getTime() : Number.POSITIVE_INFINITY
  // Since the first claim or the last settled step.
  const end =
    patience === 'caller'
      ? new Date(created_at).getTime() + callerSeconds * 1000
      : new Date(last_activity_at ?? systemClock.now()).getTime() + MAX_WAIT_MS
  return Math.min(deadline, end)
}

/** Requeues a turn for the end of its wait. @throws TurnClaimLost, TurnAborted */
export async function waitForModel(turn: TurnAttempt, { at, attempts }: ModelWait): Promise<'waiting'> {
  const { services, context, generation } = turn
  const after = { ...generation, model_attempts: attempts, model_retry_at: at.toISOString() }
  const { held } = await retryWhileUnavailable(
    () =>
      services.writeOne(outbox => {
        const { id: generation_id, project_id } = generation
        if (context.source?.wake) context.source.wake(outbox, at)
        else outbox.send(turnQueue, { generation_id, project_id }, { startAfter: at })
        return modelWaitParts(after)
      }),
    context,
  )
  if (!held) throw (await findRequestedAbort(turn)) ?? new TurnClaimLost()
  turn.logWait(at)
  return 'waiting'
}
