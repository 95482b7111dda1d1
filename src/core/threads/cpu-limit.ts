import { createContext, Script } from 'node:vm'

/** Work exceeded its limit of processor time. */
export class CpuTimeExceeded extends Error {}

/** Work got too little processor time to finish, because the machine is busy. */
export class CpuStarved extends Error {}

/** Returns the processor time of this thread since a point in time. */
export function cpuMsSince(start: NodeJS.CpuUsage): number {
  const { user, system } = process.threadCpuUsage(start)
  return (user + system) / 1000
}

const sandbox: { job: () => unknown } = { job: () => undefined }
const context = createContext(sandbox)
const script = new Script('job()')

/** Longest wall time of one try as a multiple of its processor time: enough on a fortieth of a core. */
const MAX_STRETCH = 40
const PATIENCE_MS = 20_000

/**
 * Runs synchronous work and interrupts it after `ms` of processor time, in JavaScript and in regular expressions. V8's
 * timeout is wall time, so a try that was starved of processor time is repeated with a longer timeout. Costs 0.3 to 0.5
 * ms of wall time and 0.1 ms of processor time, because V8 starts a thread for each timeout.
 * @throws CpuTimeExceeded, CpuStarved, and errors of the work
 */
export function runWithCpuLimit<T>(ms: number, work: () => T): T {
  const until = performance.now() + PATIENCE_MS
  for (let timeout = ms; ; ) {
    const before = process.threadCpuUsage()
    sandbox.job = work
    try {
      return script.runInContext(context, { timeout }) as T
    } catch (error) {
      if ((error as { code?: unknown }).code !== 'ERR_SCRIPT_EXECUTION_TIMEOUT') throw error
      const used = cpuMsSince(before)
      if (used >= ms * 0.9) throw new CpuTimeExceeded()
      if (performance.now() > until) throw new CpuStarved()
      timeout = Math.ceil(Math.min(MAX_STRETCH * ms, (2 * ms * timeout) / Math.max(used, 1)))
    } finally {
      sandbox.job = () => undefined
    }
  }
}
