import { type Context, type OperationResult, result } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { traceContext } from '#core/base/telemetry.ts'
import { type PrincipalRecord, principalRecord } from '#core/iam/caller.ts'
import { subscribeUntil } from '#core/work/subscription.ts'
import type { Tx } from '#core/writes/writer.ts'
import { lockUnpaused } from '#identity/projects/pause.ts'
import { wakeFiring } from './fire.ts'
import { effectiveInput } from './input.ts'
import {
  FIRING_CHANNEL,
  type FiringRow,
  firingKind,
  isFiringTerminal,
  presentPrincipal,
  type TriggerRow,
} from './model.ts'
import { checkFiring } from './targets.ts'

/** Polling interval, a fallback for lost notifications. */
const POLL_MS = 2000

/**
 * Returns a manual firing with its effective input. Its `write` inserts the firing and its message in a transaction.
 * @throws TRIGGER_INPUT_INVALID
 */
export async function acceptFiring(
  services: Services,
  trigger: TriggerRow,
  id: string,
  ownInput: Record<string, unknown>,
) {
  const { id: trigger_id, project_id, target_type } = trigger
  const facts = { id, source: 'manual' as const, scheduled_for: null, fired_at: services.clock.now().toISOString() }
  const input = await effectiveInput(services, trigger, ownInput, facts)
  return {
    id,
    input,
    async write(tx: Tx, by: PrincipalRecord, idempotency_key: string | null): Promise<FiringRow> {
      const values = { id, project_id, trigger_id, source: 'manual' as const, target_type, input, idempotency_key }
      const row = await firingKind.insert(tx, {
        ...values,
        fired_by: presentPrincipal(by),
        asked_by: by,
        trace_context: traceContext(),
      })
      wakeFiring(tx, row)
      return row
    },
  }
}

/**
 * Fires a trigger on request. Returns 202 with the firing immediately, or with `wait` 200 with the firing once it has
 * settled or TRIGGER_FIRE_WAIT_MAX_MS have passed. A disconnected caller does not cancel the firing.
 */
export async function fireManually(
  { services, caller, resource: trigger, request, record }: Context<unknown, unknown, TriggerRow>,
  ownInput: Record<string, unknown>,
  wait: boolean,
): Promise<OperationResult> {
  const { id: trigger_id, project_id } = trigger
  if (!trigger.active) raise('TRIGGER_NOT_ACTIVE', { meta: { trigger_id } })
  const firing = await acceptFiring(services, trigger, newId(firingKind.prefix), ownInput)
  const { id, input } = firing
  const by = principalRecord(caller)
  await checkFiring(services, trigger, { input, causation_chain: [], asked_by: by })
  const subscription = wait ? subscribeFiring(services, id) : null
  try {
    const created = await services.write(async tx => {
      await lockUnpaused(tx, project_id)
      const row = await firing.write(tx, by, null)
      const replay = wait ? { made: { firing_id: id } } : { body: firingKind.present(row) }
      record(tx, wait ? 200 : 202, { id: trigger_id, ...replay })
      return row
    })
    await injectFault(services, 'trigger_accepted')
    if (!subscription) return result(202, firingKind.present(created))
    const options = { closed: request.closed, withinMs: maxWaitMs(services), known: created }
    return firingResult(await subscription.wait(options), id)
  } finally {
    subscription?.cancel()
  }
}

/** Waits for the firing that a first, lost request with the same idempotency key has created. */
export async function awaitFiring(
  { services, request }: Pick<Context, 'services' | 'request'>,
  id: string,
): Promise<OperationResult> {
  const { closed } = request
  return firingResult(await subscribeFiring(services, id).wait({ closed, withinMs: maxWaitMs(services) }), id)
}

const maxWaitMs = ({ config }: Services): number => config.TRIGGER_FIRE_WAIT_MAX_MS

const firingResult = (firing: FiringRow | null, id: string): OperationResult =>
  firing
    ? result(200, firingKind.present(firing))
    : raise('RESOURCE_NOT_FOUND', { message: `Firing ${id} was deleted`, meta: { id } })

const subscribeFiring = (services: Services, id: string) =>
  subscribeUntil<FiringRow | null>({
    subscribe: notify =>
      services.notifications.listen(FIRING_CHANNEL, settledId => settledId === id && notify(), { onReconnect: notify }),
    read: () => firingKind.find(services.pool, id),
    isOver: firing => !firing || isFiringTerminal(firing),
    pollMs: POLL_MS,
  })
