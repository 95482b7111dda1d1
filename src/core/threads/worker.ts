import { parentPort } from 'node:worker_threads'
import { CpuStarved, CpuTimeExceeded, cpuMsSince } from './cpu-limit.ts'

/**
 * Program of a worker thread (pool.ts) that runs tasks, one at a time. It has no secrets and may be terminated at any
 * time.
 */

/** A task as the URL of its module, and its input. */
export type ThreadRequest = { module: string; input: unknown }

/** `ms`: processor time of the task. */
export type ThreadAnswer = { ms: number } & ({ output: unknown } | { starved: true } | { broke: 'time' })

async function run({ module, input }: ThreadRequest): Promise<ThreadAnswer> {
  const task = await import(module)
  const start = process.threadCpuUsage()
  try {
    const output: unknown = task.run(input)
    return { output, ms: cpuMsSince(start) }
  } catch (error) {
    if (error instanceof CpuTimeExceeded) return { broke: 'time', ms: cpuMsSince(start) }
    if (error instanceof CpuStarved) return { starved: true, ms: cpuMsSince(start) }
    throw error
  }
}

parentPort?.on('message', async (request: ThreadRequest) => parentPort?.postMessage(await run(request)))
