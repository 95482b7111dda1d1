import { AsyncLocalStorage } from 'node:async_hooks'
import type { Config } from '../../config.ts'
import type { Limits } from './call-model.ts'

/** Answers of a call with everything that it calls, in multiples of the largest single one. */
const ROOM_FACTOR = 4
/** Calls that one call may lead to. */
export const MAX_CALLS = 500

const current = new AsyncLocalStorage<Limits>()

/** Runs work that may call tools in turn: those take from the same limits, and are one level deeper. */
export const within = <T>(limits: Limits, work: () => T): T => current.run({ ...limits, depth: limits.depth + 1 }, work)

/** The limits of a call that begins here: its own, inside those of the call that it is part of. */
export function limitsOf(
  config: Pick<Config, 'TOOL_CALL_TIMEOUT_MS' | 'TOOL_MAX_RESPONSE_BYTES'>,
  given: { timeoutMs?: number; signal?: AbortSignal },
): Limits {
  const outer = current.getStore()
  const { timeoutMs = Number.POSITIVE_INFINITY, signal } = given
  const until = performance.now() + Math.min(config.TOOL_CALL_TIMEOUT_MS, timeoutMs)
  if (outer) return { ...outer, until: Math.min(outer.until, until), signal: signal ?? outer.signal }
  const room = { bytes: ROOM_FACTOR * config.TOOL_MAX_RESPONSE_BYTES, calls: MAX_CALLS }
  return { until, room, signal, depth: 0 }
}
