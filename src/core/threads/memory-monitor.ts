import { workerData } from 'node:worker_threads'

/**
 * Monitor thread of a confined process: kills it above its memory limit, or when its parent is gone, even while the main
 * thread is busy. No other limit covers memory outside V8's heap, such as stream buffers. SIGUSR2 has no handler, so it ends
 * the process immediately, and the parent sees the signal.
 */
const { parent, memoryBytes } = workerData as { parent: number; memoryBytes: number }

setInterval(() => {
  if (process.memoryUsage.rss() > memoryBytes) process.kill(process.pid, 'SIGUSR2')
  if (process.ppid !== parent) process.kill(process.pid, 'SIGKILL')
}, 25)
