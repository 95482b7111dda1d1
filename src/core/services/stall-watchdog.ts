import { Worker } from 'node:worker_threads'
import { Counter, Histogram } from 'prom-client'
import { registry } from '../base/metrics.ts'
import { processSingleton } from '../base/process-singleton.ts'
import { threadEnvironment } from '../base/thread-environment.ts'
import { currentWork } from '../db/tenant-context.ts'
import { CURRENT_WORK, type Stall } from './stall-model.ts'

/** How often the event loop reports that it runs. With the thread it costs an idle process 1.8 ms of processor time per second. */
const BEAT_MS = 200

const stalls = new Counter({
  name: 'muster_event_loop_stalls_total',
  help: 'Times that the event loop did not run for more than a second, by the operation or queue whose code ran',
  labelNames: ['work'],
  registers: [registry],
})

const stallDuration = new Histogram({
  name: 'muster_event_loop_stall_seconds',
  help: 'Length of stalls of the event loop above a second',
  buckets: [1, 2, 5, 10, 30, 60, 300],
  registers: [registry],
})

/**
 * Watches the event loop of this process from a thread, which logs a stall while it lasts, with the operation or queue,
 * the project and the stack where the time goes: a process that never recovers leaves the line too.
 */
export const stallWatchdog = processSingleton(
  ({ log }) => {
    const beats = new Int32Array(new SharedArrayBuffer(4))
    Object.assign(globalThis, { [CURRENT_WORK]: () => JSON.stringify(currentWork()) })
    const thread = new Worker(new URL('./stall-thread.ts', import.meta.url), {
      name: 'stall watchdog',
      env: threadEnvironment(),
      workerData: { beats, bindings: log.bindings() },
      resourceLimits: { maxOldGenerationSizeMb: 32, maxYoungGenerationSizeMb: 4 },
    })
    thread.unref()
    const timer = setInterval(() => Atomics.add(beats, 0, 1), BEAT_MS).unref()
    thread.on('message', ({ ms, work, project_id, stack }: Stall) => {
      stalls.inc({ work: work ?? 'none' })
      stallDuration.observe(ms / 1000)
      log.warn({ stall_ms: Math.round(ms), work, project_id, stack }, 'event loop stalled')
    })
    thread.on('error', error => log.error({ err: error }, 'stall watchdog failed'))
    return {
      async close() {
        clearInterval(timer)
        await thread.terminate()
      },
    }
  },
  watchdog => watchdog.close(),
)
