import { workerData } from 'node:worker_threads'

/**
 * Monitor thread of pdf-process.ts: kills the process above its memory limit, or when its parent is gone, even while
 * the main thread is busy. No other limit covers memory outside V8's heap, such as stream buffers. SIGUSR2 has no
 * handler, so it ends the process immediately, and the parent sees the signal.
 */
const { parent, maxMemoryBytes } = workerData as { parent: number; maxMemoryBytes: number }

setInterval(() => {
  if (process.memoryUsage.rss() > maxMemoryBytes) process.kill(process.pid, 'SIGUSR2')
  if (process.ppid !== parent) process.kill(process.pid, 'SIGKILL')
}, 25)
