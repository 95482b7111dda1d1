import { setTimeout as sleep } from 'node:timers/promises'
import { requiresReservation } from '#control/quotas/spend.ts'
import { systemClock } from '#core/base/clock.ts'
import { HOLDER } from '#core/base/holder.ts'
import type { Services } from '#core/base/services.ts'
import type { AcquiredSlot } from '#core/work/handler.ts'
import { type LocalContext, localWork } from '#core/work/local-work.ts'
import { executeTurn } from '../loop/execute-turn.ts'
import type { LoadedTurn } from '../loop/turn-store.ts'
import type { GenerationRow } from '../model.ts'
import { endHolds } from '../store.ts'
import { spenderOf, type TurnInput, turnQueue } from './create.ts'

/**
 * Turns that a web process executes for the request that waits for them: created in progress, with the process as holder and
 * without a message. A worker gets the message when the process stops, fails or is lost.
 */

/** Delay between tries to hand a turn over. */
const HANDOVER_RETRY_MS = 2000

/**
 * Acquires a slot for a turn that this process executes. Null if workers must execute it: this process has no slot for the
 * project, the turn joins a trace, or a quota reserves for it.
 */
export async function acquireLocalSlot(services: Services, input: TurnInput): Promise<AcquiredSlot | null> {
  const work = localWork(services)
  if (!work || input.trace_id || (await requiresReservation(services, spenderOf(input)))) return null
  return work.tryAcquire(input.project_id)
}

/** Creates a turn by `create` and executes it in the background. */
export async function startLocally(
  services: Services,
  slot: AcquiredSlot,
  create: () => Promise<LoadedTurn>,
): Promise<{ generation_id: string; trace_id: string }> {
  let turn: LoadedTurn
  try {
    turn = await create()
  } catch (error) {
    slot.release()
    throw error
  }
  const { generation, agent } = turn
  // Tools are read in any case.
  const loaded = agent?.tool_bindings?.length ? null : turn
  localWork(services)?.run(turnQueue, slot, context => execute(services, generation, context, loaded))
  return { generation_id: generation.id, trace_id: generation.trace_id }
}

async function execute(
  services: Services,
  { id, project_id }: GenerationRow,
  context: LocalContext,
  loaded: LoadedTurn | null,
): Promise<void> {
  let delayMs = 0
  const retryIn = (ms: number) => {
    delayMs = ms
  }
  try {
    const exit = await executeTurn(services, id, { ...context, retryIn, isHeld: true }, loaded)
    // A turn that waits for its model has a message.
    if (exit === 'settled' || exit === 'waiting') return
  } catch (error) {
    context.log.warn({ err: error, generation_id: id }, 'turn handed over to workers')
  }
  const startAfter = delayMs > 0 ? new Date(systemClock.now().getTime() + delayMs) : undefined
  await handOver(services, { id, project_id }, startAfter, context.signal)
}

/** Ends the hold of this process on a turn and sends its message. Retries until this process has stopped. */
async function handOver(
  services: Services,
  { id, project_id }: Pick<GenerationRow, 'id' | 'project_id'>,
  startAfter: Date | undefined,
  signal: AbortSignal,
): Promise<void> {
  for (;;) {
    try {
      return await services.write(async tx => {
        const held = await endHolds(tx, { generation: id, holder: HOLDER })
        if (held.length > 0) tx.send(turnQueue, { generation_id: id, project_id }, { startAfter })
      })
    } catch (error) {
      services.log.error({ err: error, generation_id: id }, 'turn not handed over')
      if (signal.aborted) return
      await sleep(HANDOVER_RETRY_MS, undefined, { signal }).catch(() => {})
    }
  }
}
