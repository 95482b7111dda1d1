import type { RecordedFailure } from '../../../core/api/errors.ts'
import { withoutTenant } from '../../../core/db/tenant-context.ts'
import { processSingleton } from '../../../core/process/process-singleton.ts'
import type { Services } from '../../../core/process/services.ts'
import { listAbortedOrLost } from '../store.ts'

/** Notifies web processes of frames and ends: `<generation id> frames` or `<generation id> settled`. */
export const TURN_CHANNEL = 'muster_turns'
/** Notifies executors of abort requests: the generation id. */
export const ABORT_CHANNEL = 'muster_turn_aborts'

/** Wakes those who stream a turn, once frames of it are committed. */
export const notifyFrames = ({ notifier }: Pick<Services, 'notifier'>, generationId: string): void =>
  notifier.notify({ channel: TURN_CHANNEL, payload: `${generationId} frames` })

/** How often an executor checks for aborts and lost turns whose notification it missed. */
const CHECK_MS = 2000

/** Why a running attempt was ended from outside. */
export class TurnAborted extends Error {
  readonly failure: RecordedFailure & { stop_reason: 'error' | 'cancelled' }
  constructor(failure: RecordedFailure & { stop_reason: 'error' | 'cancelled' }) {
    super(failure.message)
    this.failure = failure
  }
}
/** Another attempt owns the turn: write nothing, leave. */
export class TurnClaimLost extends Error {}

type Running = { attempt: number; controller: AbortController }

/** What one process knows of turns: those it runs, and those its callers listen to. */
export type LiveTurns = {
  /** Announces a running attempt; its controller is aborted with TurnAborted or TurnLost. Call the result when it ends. */
  run(generationId: string, attempt: number, controller: AbortController): () => void
  /** Calls back on every notification about a turn, and after the listening connection was lost. Call the result to end. */
  watch(generationId: string, listener: (what: 'frames' | 'settled' | 'reconnected') => void): () => void
}

/** The live turns of a process. */
export const liveTurns = processSingleton(open)

function open(services: Services): LiveTurns {
  const running = new Map<string, Running>()
  const watchers = new Map<string, Set<(what: 'frames' | 'settled' | 'reconnected') => void>>()
  let timer: NodeJS.Timeout | undefined
  let checking = false

  const check = async () => {
    if (running.size === 0 || checking) return
    checking = true
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
      services.log.warn({ err: error }, 'running turns could not be checked')
    } finally {
      checking = false
    }
  }
  services.notifications.listen(ABORT_CHANNEL, id => {
    if (running.has(id)) void check()
  })
  services.notifications.listen(
    TURN_CHANNEL,
    payload => {
      const [id, what] = payload.split(' ')
      const listeners = watchers.get(id)
      if (listeners) for (const listener of [...listeners]) listener(what as 'frames' | 'settled')
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
      // Of all running turns, whichever started it.
      timer ??= withoutTenant(() => setInterval(() => void check(), CHECK_MS)).unref()
      return () => {
        if (running.get(generationId) === entry) running.delete(generationId)
        if (running.size === 0) {
          clearInterval(timer)
          timer = undefined
        }
      }
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
