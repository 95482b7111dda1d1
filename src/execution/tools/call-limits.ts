import { AsyncLocalStorage } from 'node:async_hooks'
import type { Config } from '../../config.ts'
import { serviceNotReady } from '../../core/api/errors.ts'
import { freshBudget } from '../../core/expressions/evaluate.ts'
import { FairSemaphore } from '../../core/process/fair-semaphore.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import type { Limits } from './call-types.ts'

/** Answers of a call with everything that it calls, in multiples of the largest single one. */
const ROOM_FACTOR = 4
/** Calls that one call may lead to. */
export const MAX_CALLS = 500

/** Calls of one project that a process makes at once; further ones wait in turn. */
const CALLS_AT_ONCE = 32
/** Answers that the calls of one project hold in a process together, in multiples of the largest single one. */
const PROJECT_FACTOR = 8

const current = new AsyncLocalStorage<Limits>()

/** Runs work that may call tools in turn: those take from the same limits, and are one level deeper. */
export const withNestedLimits = <T>(limits: Limits, work: () => T): T =>
  current.run({ ...limits, depth: limits.depth + 1 }, work)

/** The limits of a call that begins here: its own, inside those of the call that it is part of. */
export function toolCallLimits(
  config: Pick<Config, 'TOOL_CALL_TIMEOUT_MS' | 'TOOL_MAX_RESPONSE_BYTES'>,
  given: { timeoutMs?: number; signal?: AbortSignal },
): Limits {
  const outer = current.getStore()
  const { timeoutMs = Number.POSITIVE_INFINITY, signal } = given
  const until = performance.now() + Math.min(config.TOOL_CALL_TIMEOUT_MS, timeoutMs)
  if (outer) return { ...outer, until: Math.min(outer.until, until), signal: signal ?? outer.signal }
  const room = {
    bytes: ROOM_FACTOR * config.TOOL_MAX_RESPONSE_BYTES,
    calls: MAX_CALLS,
    expressions: freshBudget(),
    held: 0,
    project: { bytes: 0 },
  }
  return { until, room, signal, depth: 0 }
}

/** The projects that have calls under way in a process. */
const projectsOf = processSingleton(() => new Map<string, { slots: FairSemaphore; calls: number; bytes: number }>())

/**
 * Makes a call with all that it leads to, as one of a bounded number of its project: what their answers take, together,
 * is bounded with it.
 * @throws SERVICE_NOT_READY when its time is over before its turn comes, and the reason of its signal
 */
export async function withCallSlot<T>(
  services: Services,
  projectId: string,
  { until, signal, room }: Limits,
  work: () => Promise<T>,
): Promise<T> {
  const projects = projectsOf(services)
  const project = projects.get(projectId) ?? { slots: new FairSemaphore(CALLS_AT_ONCE), calls: 0, bytes: 0 }
  projects.set(projectId, project)
  project.calls += 1
  room.project = project
  const ms = until - performance.now()
  const late = () => busy('The calls of the project that are under way left no time')
  try {
    const giveBack = await project.slots.acquireWithin(projectId, 1, { ms, late, signal })
    return await work().finally(giveBack)
  } finally {
    project.bytes -= room.held
    project.calls -= 1
    if (project.calls === 0) projects.delete(projectId)
  }
}

/**
 * Takes an answer of so many bytes out of the room of a call.
 * @throws SERVICE_NOT_READY when the calls of the project hold too much together
 */
export function reserveResponseBytes(
  config: Pick<Config, 'TOOL_MAX_RESPONSE_BYTES'>,
  { room }: Limits,
  bytes: number,
): void {
  room.bytes -= bytes
  room.held += bytes
  room.project.bytes += bytes
  if (room.project.bytes > PROJECT_FACTOR * config.TOOL_MAX_RESPONSE_BYTES)
    throw busy('The answers to calls of the project that are under way take all the memory there is for them')
}

const busy = (message: string) => serviceNotReady({ tools: 'busy' }, { message, retryAfterSeconds: 1 })
