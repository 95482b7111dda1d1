import type { Layout, Shape } from './shape.ts'

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
  started.onerror = ({ message }) => {
    for (const { reject } of waiting.values()) reject(new Error(message))
    waiting.clear()
    worker = undefined
  }
  return started
}

/** Lays out a graph from top to bottom, in a worker so that a large graph does not block the page. */
export function layoutOf(shape: Shape): Promise<Layout> {
  worker ??= start()
  const number = ++last
  return new Promise((resolve, reject) => {
    waiting.set(number, { resolve, reject })
    worker?.postMessage({ number, shape })
  })
}
