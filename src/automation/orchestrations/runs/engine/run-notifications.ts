import { parseExactJson } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { openText, sealForNotification } from '#core/secrets/sealed-text.ts'
import { subscribeUntil } from '#core/work/subscription.ts'
import { waiters } from '#core/work/waiters.ts'
import type { Outbox } from '#core/writes/writer.ts'
import { isRunTerminal, type OrchestrationRunRecord, type RunRow, type RunStatus, runKind } from '../model.ts'

/** Rows that wait for the end of a run or for its request of input. */
export const runWaiters = waiters<RunRow>('runs', 'automation/orchestrations/runs/engine')

/** Channel whose payload is `<run id> <status> [<revision> <end>]`: the end is the run as callers get it, sealed. */
const CHANNEL = 'muster_orchestration_runs'

/** A run that has ended or awaits input, in a notification. */
type AnnouncedEnd = { revision: number; sealed: string }

type Changed = Pick<RunRow, 'id' | 'status'>

export const notifyRunChanged = (
  outbox: Pick<Outbox, 'notify'>,
  { id, status }: Changed,
  end: AnnouncedEnd | null = null,
): void => outbox.notify(CHANNEL, end ? `${id} ${status} ${end.revision} ${end.sealed}` : `${id} ${status}`)

const sealOf = (id: string, revision: number) => ({ kind: 'run_end', id: `${id}:${revision}`, project_id: null })

/** Returns a run as callers get it for its notification; null if it does not fit. */
export function sealRunEnd(
  services: Services,
  { id, revision }: Pick<RunRow, 'id' | 'revision'>,
  record: OrchestrationRunRecord,
): AnnouncedEnd | null {
  const sealed = sealForNotification(services, JSON.stringify(record), sealOf(id, revision))
  return sealed === null ? null : { revision, sealed }
}

function openRunEnd(services: Services, id: string, { revision, sealed }: AnnouncedEnd): OrchestrationRunRecord | null {
  const text = openText(services, sealed, sealOf(id, revision))
  return text === null ? null : (parseExactJson(text) as OrchestrationRunRecord)
}

/**
 * Subscribes to changes of runs in all processes; returns the function that unsubscribes.
 * @param reconnected called when notifications may have been lost
 */
export const onRunChanged = (
  { notifications }: Services,
  changed: (id: string, status: RunStatus, end: AnnouncedEnd | null) => void,
  reconnected: () => void,
): (() => void) =>
  notifications.listen(
    CHANNEL,
    payload => {
      const [id, status, revision, sealed] = payload.split(' ')
      changed(id, status as RunStatus, sealed === undefined ? null : { revision: Number(revision), sealed })
    },
    { onReconnect: reconnected },
  )

/** Polling interval in case a notification is lost. */
const POLL_MS = 1000

const endsWait = (run: Pick<RunRow, 'status'>): boolean => isRunTerminal(run) || run.status === 'awaiting_input'

/** A run after a wait: its row, or the record from its notification. */
export type WaitedRun = { row: RunRow } | { record: OrchestrationRunRecord }

/**
 * Subscribes to a run before it changes. `wait` returns the run when it has ended or awaits input, after
 * ORCHESTRATION_WAIT_MAX_MS, or when the caller disconnects; null if the run is missing. No connection is held
 * meanwhile, and nothing is read if the notification has the run after `known`.
 */
export function subscribeRun(services: Services, runId: string) {
  let end: AnnouncedEnd | null = null
  let seen = 0
  const { wait, cancel } = subscribeUntil<WaitedRun | null>({
    subscribe: onChange =>
      onRunChanged(
        services,
        (id, status, announced) => {
          if (id !== runId || !endsWait({ status })) return
          if (announced) end = announced
          onChange()
        },
        onChange,
      ),
    async read() {
      const announced = end
      end = null
      const record = announced && announced.revision > seen ? openRunEnd(services, runId, announced) : null
      if (record) return { record }
      const row = await runKind.find(services.pool, runId)
      return row && { row }
    },
    isOver: run => !run || endsWait('row' in run ? run.row : run.record),
    pollMs: POLL_MS,
  })
  return {
    cancel,
    wait(closed: AbortSignal, known?: RunRow): Promise<WaitedRun | null> {
      seen = known?.revision ?? 0
      return wait({
        closed,
        withinMs: services.config.ORCHESTRATION_WAIT_MAX_MS,
        known: known && { row: known },
      })
    },
  }
}
