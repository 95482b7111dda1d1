import { raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { type Context, type OperationResult, result } from '../../core/api/operation.ts'
import type { Tx } from '../../core/db/writer.ts'
import { type PrincipalRecord, principalRecord } from '../../core/iam/caller.ts'
import { subscribeUntil } from '../../core/jobs/subscription.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { lockUnpaused } from '../../identity/projects/pause.ts'
import { effectiveInput } from './input.ts'
import {
  FIRING_CHANNEL,
  type FiringRow,
  firingKind,
  isFiringTerminal,
  presentPrincipal,
  type TriggerRow,
} from './model.ts'
import { triggerFiringQueue } from './queue.ts'
import { checkFiring } from './targets.ts'

/** The floor under the notifications. */
const POLL_MS = 2000

/**
 * A firing that somebody asks for, with its effective input; `write` adds it in a transaction, with its message.
 * @throws TRIGGER_INPUT_INVALID
 */
export function acceptFiring(services: Services, trigger: TriggerRow, id: string, given: Record<string, unknown>) {
  const { id: trigger_id, project_id, target_type } = trigger
  const facts = { id, source: 'manual' as const, scheduled_for: null, fired_at: services.clock.now().toISOString() }
  const input = effectiveInput(trigger, given, facts)
  return {
    id,
    input,
    async write(tx: Tx, by: PrincipalRecord, idempotency_key: string | null): Promise<FiringRow> {
      const values = { id, project_id, trigger_id, source: 'manual' as const, target_type, input, idempotency_key }
      const row = await firingKind.insert(tx, { ...values, fired_by: presentPrincipal(by), asked_by: by })
      tx.send(triggerFiringQueue, { firing_id: id, project_id })
      return row
    },
  }
}

/**
 * Fires a trigger by hand. Answers 202 with the firing at once, or 200 with it as it has ended or as it is when
 * TRIGGER_FIRE_WAIT_MAX_MS are over. A caller that goes away changes nothing.
 */
export async function fireManually(
  { services, caller, resource: trigger, request, record }: Context<unknown, unknown, TriggerRow>,
  given: Record<string, unknown>,
  wait: boolean,
): Promise<OperationResult> {
  const { id: trigger_id, project_id } = trigger
  if (!trigger.active) raise('TRIGGER_NOT_ACTIVE', { meta: { trigger_id } })
  const firing = acceptFiring(services, trigger, newId(firingKind.prefix), given)
  const { id, input } = firing
  const by = principalRecord(caller)
  await checkFiring(services, trigger, { input, causation_chain: [], asked_by: by })
  const end = wait ? expectFiring(services, id) : null
  try {
    const made = await services.write(async tx => {
      await lockUnpaused(tx, project_id)
      const row = await firing.write(tx, by, null)
      const given = wait ? { made: { firing_id: id } } : { body: firingKind.present(row) }
      record(tx, wait ? 200 : 202, { id: trigger_id, ...given })
      return row
    })
    await injectFault(services, 'trigger_accepted')
    if (!end) return result(202, firingKind.present(made))
    return shown(await end.wait({ closed: request.closed, withinMs: withinMs(services), known: made }), id)
  } finally {
    end?.cancel()
  }
}

/** Answers a repeat for a firing that a first request had made when it was lost: waits for its end. */
export async function firedAgain(
  { services, request }: Pick<Context, 'services' | 'request'>,
  id: string,
): Promise<OperationResult> {
  const { closed } = request
  return shown(await expectFiring(services, id).wait({ closed, withinMs: withinMs(services) }), id)
}

const withinMs = ({ config }: Services): number => config.TRIGGER_FIRE_WAIT_MAX_MS

const shown = (firing: FiringRow | null, id: string): OperationResult =>
  firing
    ? result(200, firingKind.present(firing))
    : raise('RESOURCE_NOT_FOUND', { message: 'The firing is gone', meta: { id } })

const expectFiring = (services: Services, id: string) =>
  subscribeUntil<FiringRow | null>({
    subscribe: notice =>
      services.notifications.listen(FIRING_CHANNEL, ended => ended === id && notice(), { onReconnect: notice }),
    read: () => firingKind.find(services.pool, id),
    isOver: firing => !firing || isFiringTerminal(firing),
    pollMs: POLL_MS,
  })
