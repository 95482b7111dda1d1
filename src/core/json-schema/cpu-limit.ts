import { createContext, Script } from 'node:vm'

/** Work took more processor time than it may. */
export class CpuTimeExceeded extends Error {}

/** Work got too little of the processor to come to an end. */
export class CpuStarved extends Error {}

const sandbox: { job: () => unknown } = { job: () => undefined }
const context = createContext(sandbox)
const script = new Script('job()')

/** Longest time on the wall for one try, in multiples of its processor time: enough where a fortieth of a core is left. */
const MAX_STRETCH = 40
const PATIENCE_MS = 20_000

/**
 * Runs synchronous work and interrupts it after `ms` of processor time, in JavaScript and in regular expressions. V8
 * interrupts after time on the wall, so a try that was kept from the processor is repeated with more of it. Costs 0.3 to
 * 0.5 ms of time, 0.1 of the processor: V8 starts a thread for each timeout.
 * @throws OutOfTime, Starved, and what the work throws
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
      const { user, system } = process.threadCpuUsage(before)
      const used = (user + system) / 1000
      if (used >= ms * 0.9) throw new CpuTimeExceeded()
      if (performance.now() > until) throw new CpuStarved()
      timeout = Math.ceil(Math.min(MAX_STRETCH * ms, (2 * ms * timeout) / Math.max(used, 1)))
    } finally {
      sandbox.job = () => undefined
    }
  }
}
