import { AsyncLocalStorage } from 'node:async_hooks'
import type { Config } from '#core/base/config.ts'
import { serviceNotReady } from '#core/base/errors.ts'
import { FairSemaphore } from '#core/base/fair-semaphore.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { freshBudget } from '#core/expressions/evaluate.ts'
import type { Limits } from './call-types.ts'

/** Response bytes of a call including nested calls, in multiples of the largest single response. */
const CALL_BYTES_FACTOR = 4
/** Maximum number of calls that one call may lead to, itself included. */
export const MAX_CALLS = 500

/** Concurrent calls of one project in a process; further ones queue. */
const MAX_CONCURRENT_CALLS = 32
/** Response bytes of the concurrent calls of one project in a process, in multiples of the largest single response. */
const PROJECT_BYTES_FACTOR = 8

const current = new AsyncLocalStorage<Limits>()

/** Runs work that may call tools: they share the limits, one level deeper. */
export const withNestedLimits = <T>(limits: Limits, work: () => T): T =>
  current.run({ ...limits, depth: limits.depth + 1 }, work)

/** Returns the limits of a new call, within the limits of an enclosing call. */
export function toolCallLimits(
  config: Pick<Config, 'TOOL_CALL_TIMEOUT_MS' | 'TOOL_MAX_RESPONSE_BYTES'>,
  options: { timeoutMs?: number; signal?: AbortSignal },
): Limits {
  const outer = current.getStore()
  const { timeoutMs = Number.POSITIVE_INFINITY, signal } = options
  const until = performance.now() + Math.min(config.TOOL_CALL_TIMEOUT_MS, timeoutMs)
  if (outer) return { ...outer, until: Math.min(outer.until, until), signal: signal ?? outer.signal }
  const room = {
    bytes: CALL_BYTES_FACTOR * config.TOOL_MAX_RESPONSE_BYTES,
    calls: MAX_CALLS,
    expressions: freshBudget(),
    held: 0,
    project: { bytes: 0 },
  }
  return { until, room, signal, depth: 0 }
}

/** Projects with active calls in a process. */
const activeProjects = processSingleton(() => new Map<string, { slots: FairSemaphore; calls: number; bytes: number }>())

/**
 * Runs a call with its nested calls in one of the slots of its project, which also bounds their response bytes.
 * @throws SERVICE_NOT_READY if no slot is free in time, and the reason of its signal
 */
export async function withCallSlot<T>(
  services: Services,
  projectId: string,
  { until, signal, room }: Limits,
  work: () => Promise<T>,
): Promise<T> {
  const projects = activeProjects(services)
  const project = projects.get(projectId) ?? { slots: new FairSemaphore(MAX_CONCURRENT_CALLS), calls: 0, bytes: 0 }
  projects.set(projectId, project)
  project.calls += 1
  room.project = project
  const ms = until - performance.now()
  const late = () => busy('No capacity left for tool calls of the project in time')
  try {
    const release = await project.slots.acquireWithin(projectId, 1, { ms, late, signal })
    return await work().finally(release)
  } finally {
    project.bytes -= room.held
    project.calls -= 1
    if (project.calls === 0) projects.delete(projectId)
  }
}

/**
 * Subtracts a response from the remaining bytes of a call.
 * @throws SERVICE_NOT_READY if active calls of the project exceed their byte limit
 */
export function reserveResponseBytes(
  config: Pick<Config, 'TOOL_MAX_RESPONSE_BYTES'>,
  { room }: Limits,
  bytes: number,
): void {
  room.bytes -= bytes
  room.held += bytes
  room.project.bytes += bytes
  if (room.project.bytes > PROJECT_BYTES_FACTOR * config.TOOL_MAX_RESPONSE_BYTES)
    throw busy('Responses to active tool calls of the project exceed their memory limit')
}

const busy = (message: string) => serviceNotReady({ tools: 'busy' }, { message, retryAfterSeconds: 1 })
