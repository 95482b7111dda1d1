import type { RecordedFailure } from '#core/base/errors.ts'
import { exclusiveLoop } from '#core/base/loop.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { withoutTenant } from '#core/db/tenant-context.ts'
import { listAbortedOrLost } from '../store.ts'
import { type AnnouncedEnd, TURN_CHANNEL } from './turn-end.ts'

/** Notifies executors of abort requests: the generation id. */
export const ABORT_CHANNEL = 'muster_turn_aborts'

/** Notifies subscribers of a turn after its frames were committed. */
export const notifyFrames = ({ notifier }: Pick<Services, 'notifier'>, generationId: string): void =>
  notifier.notify({ channel: TURN_CHANNEL, payload: `${generationId} frames` })

/** Interval at which running turns are checked for aborts and lost claims, in case of lost notifications. */
const CHECK_MS = 2000

/** Raised in an attempt that is aborted from outside or by its time limit. */
export class TurnAborted extends Error {
  readonly failure: RecordedFailure & { stop_reason: 'error' | 'cancelled' }
  constructor(failure: RecordedFailure & { stop_reason: 'error' | 'cancelled' }) {
    super(failure.message)
    this.failure = failure
  }
}
/** Another attempt has claimed the turn: stop without writing. */
export class TurnClaimLost extends Error {}

/** @param end if known */
type TurnListener = (event: 'frames' | 'settled' | 'reconnected', end?: AnnouncedEnd) => void

type RunningAttempt = { attempt: number; controller: AbortController }

/** Turns running in this process, and subscriptions of its callers. */
export type LiveTurns = {
  /**
   * Registers a running attempt, whose controller is aborted with TurnAborted or TurnClaimLost. Returns its removal.
   */
  run(generationId: string, attempt: number, controller: AbortController): () => void
  /** Notifies subscribers in this process of the end of a turn; without `end` they read it. */
  announceEnd(generationId: string, end: AnnouncedEnd | undefined): void
  /** Subscribes to notifications of a turn and to reconnects. Returns the unsubscribe function. */
  watch(generationId: string, listener: TurnListener): () => void
}

/** Returns the live turns of this process. */
export const liveTurns = processSingleton(createLiveTurns)

function createLiveTurns(services: Services): LiveTurns {
  const running = new Map<string, RunningAttempt>()
  const watchers = new Map<string, Set<TurnListener>>()
  let timer: NodeJS.Timeout | undefined
  const { log } = services

  const check = exclusiveLoop('live turns', { periodMs: CHECK_MS, log }, async () => {
    if (running.size === 0) return
    try {
      const rows = await listAbortedOrLost(
        services.pool,
        [...running].map(([id, { attempt }]) => ({ id, attempt })),
      )
      for (const row of rows) {
        const entry = running.get(row.id)
        if (!entry || entry.attempt !== row.running_attempt) continue
        if (row.status !== 'in_progress' || row.attempt !== entry.attempt) entry.controller.abort(new TurnClaimLost())
        else if (row.abort) entry.controller.abort(new TurnAborted(row.abort))
      }
    } catch (error) {
      log.warn({ err: error }, 'running turns check failed')
    }
  })
  const notifyListeners = (id: string, event: 'frames' | 'settled', end?: AnnouncedEnd) => {
    for (const listener of [...(watchers.get(id) ?? [])]) listener(event, end)
  }
  services.notifications.listen(ABORT_CHANNEL, id => {
    if (running.has(id)) void check()
  })
  services.notifications.listen(
    TURN_CHANNEL,
    payload => {
      const [id, event, seq, sealed] = payload.split(' ')
      const end = sealed === undefined ? undefined : { seq: Number(seq), sealed }
      notifyListeners(id, event as 'frames' | 'settled', end)
    },
    {
      onReconnect: () => {
        for (const listeners of [...watchers.values()]) for (const listener of [...listeners]) listener('reconnected')
      },
    },
  )
  return {
    run(generationId, attempt, controller) {
      const entry = { attempt, controller }
      running.set(generationId, entry)
      // The timer serves turns of all tenants.
      timer ??= withoutTenant(() => setInterval(() => void check(), CHECK_MS)).unref()
      return () => {
        if (running.get(generationId) === entry) running.delete(generationId)
        if (running.size === 0) {
          clearInterval(timer)
          timer = undefined
        }
      }
    },
    announceEnd(generationId, end) {
      notifyListeners(generationId, 'settled', end)
    },
    watch(generationId, listener) {
      let listeners = watchers.get(generationId)
      if (!listeners) {
        listeners = new Set()
        watchers.set(generationId, listeners)
      }
      listeners.add(listener)
      return () => {
        listeners.delete(listener)
        if (listeners.size === 0 && watchers.get(generationId) === listeners) watchers.delete(generationId)
      }
    },
  }
}
