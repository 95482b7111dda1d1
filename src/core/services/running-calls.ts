import { pollUntil } from '../base/poll.ts'
import { processSingleton } from '../base/process-singleton.ts'
import type { Services } from '../base/services.ts'

const POLL_MS = 20

const runningCalls = processSingleton(() => ({ count: 0 }))

/** Runs a call, whose end a move of its cell waits for. */
export async function asRunningCall<T>(services: Services, work: () => Promise<T>): Promise<T> {
  const calls = runningCalls(services)
  calls.count++
  try {
    return await work()
  } finally {
    calls.count--
  }
}

/** Waits until the running calls of a cell have ended, at most `withinMs`. */
export const untilCallsEnd = (services: Services, withinMs: number): Promise<unknown> =>
  pollUntil(async () => (runningCalls(services).count === 0 ? true : null), { withinMs, pauseMs: POLL_MS })
