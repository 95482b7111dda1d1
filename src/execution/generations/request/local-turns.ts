import { setTimeout as sleep } from 'node:timers/promises'
import { requiresReservation } from '#control/quotas/spend.ts'
import { systemClock } from '#core/base/clock.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import { HOLDER } from '#core/base/holder.ts'
import type { Services } from '#core/base/services.ts'
import { isTransient } from '#core/db/database-errors.ts'
import { type LocalContext, type LocalSlot, localWork } from '#core/work/local-work.ts'
import { executeTurn } from '../loop/execute-turn.ts'
import { refusalToStart } from '../loop/prepare-turn.ts'
import type { LoadedTurn } from '../loop/turn-store.ts'
import type { GenerationRow } from '../model.ts'
import { clearHolders } from '../store.ts'
import { permissionOf, spenderOf, type TurnInput, turnQueue } from './create.ts'

/**
 * Turns that a web process executes for the request that waits for them: created in progress, with the process as holder and
 * without a message. A worker gets the message when the process stops, fails or is lost.
 */

/** Delays after which a turn is handed over whose insert was not answered: the last one is longer than statements may take. */
const UNANSWERED_MS = [0, 5000, 120_000]

/** Delay between tries to hand a turn over. */
const HANDOVER_RETRY_MS = 2000

/**
 * Acquires a slot for a turn that this process executes. Null if workers must execute it: this process has no slot for the
 * project, a quota reserves for the turn, the turn joins a trace, whose root its insert does not read, or its principal has
 * lost the permission since the request was authorized, which a worker records.
 */
export async function acquireLocalSlot(services: Services, input: TurnInput): Promise<LocalSlot | null> {
  const work = localWork(services)
  if (!work || input.trace_id || (await requiresReservation(services, spenderOf(input)))) return null
  const { authority, project_id, agent_id } = input
  if (await refusalToStart(services, { authority, project_id, agent_id, permission: permissionOf(input) })) return null
  return work.tryAcquire(project_id)
}

/**
 * Creates a turn by `create` and executes it in the background. If the answer of the insert is lost, workers get the turn.
 * @param id of the turn
 */
export async function startLocally(
  services: Services,
  slot: LocalSlot,
  { id, project_id, create }: { id: string; project_id: string; create: () => Promise<LoadedTurn> },
): Promise<{ generation_id: string; trace_id: string }> {
  let turn: LoadedTurn
  try {
    turn = await create()
  } catch (error) {
    if (!isTransient(error)) slot.release()
    else slot.run(turnQueue, ({ signal }) => handOverIfWritten(services, { id, project_id }, signal))
    throw error
  }
  const { generation, agent } = turn
  // The insert reads no tools, and no breakers of routes.
  const loaded = agent?.tool_bindings?.length || !agent?.ai_provider_id ? null : turn
  slot.run(turnQueue, context => execute(services, generation, context, loaded))
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
    await injectFault(services, 'local_turn', () => id)
    const exit = await executeTurn(services, id, { ...context, retryIn, isHolder: true }, loaded)
    // A turn that waits for its model has a message.
    if (exit === 'settled' || exit === 'waiting') return
  } catch (error) {
    context.log.warn({ err: error, generation_id: id }, 'local turn failed')
  }
  const startAfter = delayMs > 0 ? new Date(systemClock.now().getTime() + delayMs) : undefined
  await handOver(services, { id, project_id }, startAfter, context.signal)
}

/** Hands a turn over whose insert may still be committed. */
async function handOverIfWritten(
  services: Services,
  turn: Pick<GenerationRow, 'id' | 'project_id'>,
  signal: AbortSignal,
): Promise<void> {
  for (const delayMs of UNANSWERED_MS) {
    await sleep(delayMs, undefined, { signal }).catch(() => {})
    await handOver(services, turn, undefined, signal)
  }
}

/** Clears the holder of a turn and sends its message. Retries until this process has stopped. */
async function handOver(
  services: Services,
  { id, project_id }: Pick<GenerationRow, 'id' | 'project_id'>,
  startAfter: Date | undefined,
  signal: AbortSignal,
): Promise<void> {
  for (;;) {
    try {
      return await services.write(async tx => {
        const cleared = await clearHolders(tx, { generation: id, holder: HOLDER })
        if (cleared.length > 0) tx.send(turnQueue, { generation_id: id, project_id }, { startAfter })
      })
    } catch (error) {
      services.log.error({ err: error, generation_id: id }, 'turn handover failed')
      if (signal.aborted) return
      await sleep(HANDOVER_RETRY_MS, undefined, { signal }).catch(() => {})
    }
  }
}
