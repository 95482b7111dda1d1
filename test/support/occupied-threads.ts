import type { Services } from '#core/base/services.ts'
import type * as expressionTask from '#core/expressions/task.ts'
import { threadTask } from '#core/threads/pool.ts'
import { threads } from '#core/threads/threads.ts'

const task = threadTask<typeof expressionTask>(
  'expressions',
  new URL('../../src/core/expressions/task.ts', import.meta.url),
)

const KEYS = Object.fromEntries(Array.from({ length: 3000 }, (_, index) => [`k${index}`, 0]))

/** An expression over a list that uses nearly the whole budget with 80 items: it runs in a thread. */
export const costly = (list: string) => ({ length: [{ map: [{ var: list }, KEYS] }] })
export const COSTLY_ITEMS = Array(80).fill(0)

/** Keeps the threads of a process busy for a project until the returned function is called. */
export function occupyThreads(services: Services, project: string): () => void {
  const stop = new AbortController()
  const text = JSON.stringify({ expressions: [costly('list')], root: { list: COSTLY_ITEMS } })
  const input = { text, spent: { applications: 0, volume: 0 }, strictness: 'coercing' as const, bytes: null }
  const { signal } = stop
  const repeat = async () => {
    while (!signal.aborted)
      await threads(services)
        .run({ task, project, input, length: 1 }, { signal })
        .catch(() => {})
  }
  // Each takes 25 ms or more: others wait for seconds.
  for (let count = 0; count < 300; count++) void repeat()
  return () => stop.abort()
}
