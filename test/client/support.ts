import http, { type IncomingMessage, type ServerResponse } from 'node:http'
import net, { type AddressInfo, type Socket } from 'node:net'

export type Answer = {
  status?: number
  headers?: Record<string, string>
  body?: string | Buffer
  /** Ends the connection without an answer. */
  destroy?: boolean
  /** Leaves the connection without an answer, or after the body. */
  hang?: boolean
}

export type Request = { method: string; url: string; headers: IncomingMessage['headers']; body: string; at: number }

export type Scripted = { url: string; requests: Request[]; close(): Promise<void> }

/** A server that answers each request with the next of some answers; the last one is repeated. */
export async function startScripted(...answers: (Answer | ((res: ServerResponse) => void))[]): Promise<Scripted> {
  const requests: Request[] = []
  const server = http.createServer(async (req, res) => {
    let body = ''
    for await (const chunk of req) body += chunk
    requests.push({ method: req.method as string, url: req.url as string, headers: req.headers, body, at: Date.now() })
    const answer = answers[Math.min(requests.length, answers.length) - 1]
    if (typeof answer === 'function') return answer(res)
    const { status = 200, headers = {}, destroy, hang } = answer
    if (destroy) return void res.destroy()
    if (hang && answer.body === undefined) return
    res.writeHead(status, { 'content-type': 'application/json', ...headers })
    if (hang) return void res.write(answer.body as string)
    res.end(answer.body)
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}

export const json = (value: unknown, more: Answer = {}): Answer => ({ body: JSON.stringify(value), ...more })

/** An error of the service. */
export const refusal = (status: number, code: string, headers: Record<string, string> = {}): Answer =>
  json({ error: { code, message: `refused: ${code}`, hint: 'hint', docs_url: `/errors#${code}` } }, { status, headers })

/** Messages of an event stream. */
export const events = (...all: [event: string, data: unknown, id?: string][]): Answer => ({
  headers: { 'content-type': 'text/event-stream' },
  body: all
    .map(([event, data, id]) => `${id ? `id: ${id}\n` : ''}event: ${event}\ndata: ${JSON.stringify(data)}\n\n`)
    .join(''),
})

/** Runs a function with timers that fire immediately; returns the delays that it waited. */
export async function withoutWaiting<T>(run: () => Promise<T>): Promise<{ value: T; delays: number[] }> {
  const original = globalThis.setTimeout
  const delays: number[] = []
  globalThis.setTimeout = ((callback: () => void, ms = 0, ...args: []) => {
    // Only the delays between tries: time limits stay.
    const isDelay = /sleep \(.*limits\.js/.test(new Error().stack ?? '')
    if (isDelay) delays.push(ms)
    return original(callback, isDelay ? 0 : ms, ...args)
  }) as typeof setTimeout
  try {
    return { value: await run(), delays }
  } finally {
    globalThis.setTimeout = original
  }
}

/** Forwards connections and ends each one after some bytes of the answer. */
export async function startCutter(target: URL, bytes: () => number) {
  const sockets = new Set<Socket>()
  let cuts = 0
  const server = net.createServer(inward => {
    const outward = net.connect(Number(target.port), target.hostname)
    let left = bytes()
    for (const socket of [inward, outward]) {
      sockets.add(socket)
      socket.on('error', () => {}).on('close', () => sockets.delete(socket))
    }
    inward.pipe(outward)
    inward.on('close', () => outward.destroy())
    outward.on('close', () => inward.end())
    outward.on('data', chunk => {
      inward.write(chunk.subarray(0, left))
      left -= chunk.length
      if (left > 0) return
      cuts++
      outward.destroy()
      inward.destroySoon()
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    cuts: () => cuts,
    close() {
      server.close()
      for (const socket of sockets) socket.destroy()
    },
  }
}
