import { workerData } from 'node:worker_threads'

/**
 * The thread beside pdf-process.ts that ends the process when it takes more memory than it may or when the process it
 * works for is gone. It goes on looking while the main thread is busy with a document. Memory outside of V8's heap,
 * where bytes of streams live, is bounded by nothing else. SIGUSR2 has no handler, so it ends the process at once, and
 * reports why to the parent.
 */
const { parent, maxMemoryBytes } = workerData as { parent: number; maxMemoryBytes: number }

setInterval(() => {
  if (process.memoryUsage.rss() > maxMemoryBytes) process.kill(process.pid, 'SIGUSR2')
  if (process.ppid !== parent) process.kill(process.pid, 'SIGKILL')
}, 25)
