import { useQuery } from '@tanstack/react-query'
import type { Layout, Shape } from './shape.ts'

/** Time after which a layout is abandoned. */
const LIMIT_MS = 10_000

type Waiting = { resolve: (layout: Layout) => void; reject: (error: Error) => void }

let worker: Worker | undefined
let last = 0
const waiting = new Map<number, Waiting>()

function start(): Worker {
  const started = new Worker(new URL('./layout-worker.ts', import.meta.url), { type: 'module' })
  started.onmessage = ({ data: { number, layout, error } }) => {
    const request = waiting.get(number)
    waiting.delete(number)
    if (layout) request?.resolve(layout)
    else request?.reject(new Error(error))
  }
  started.onerror = ({ message }) => stop(message)
  return started
}

/** Ends the worker and waiting layouts; the next layout starts another one. */
function stop(reason: string): void {
  worker?.terminate()
  worker = undefined
  for (const { reject } of waiting.values()) reject(new Error(reason))
  waiting.clear()
}

/** Lays out a graph from top to bottom, in a worker so that a large graph does not block the page. */
function layoutOf(shape: Shape): Promise<Layout> {
  worker ??= start()
  const number = ++last
  const limit = setTimeout(() => stop('the layout took too long'), LIMIT_MS)
  return new Promise<Layout>((resolve, reject) => {
    waiting.set(number, { resolve, reject })
    worker?.postMessage({ number, shape })
  }).finally(() => clearTimeout(limit))
}

/** Reads the layout of a graph while it is drawn. `key` identifies its shape. */
export function useLayout(shape: Shape, isDrawn: boolean) {
  const key = JSON.stringify(shape)
  const { data, isError } = useQuery({
    queryKey: ['layout', key],
    queryFn: () => layoutOf(shape),
    enabled: isDrawn,
    staleTime: Number.POSITIVE_INFINITY,
    refetchOnWindowFocus: false,
  })
  return { key, layout: data, isError }
}
