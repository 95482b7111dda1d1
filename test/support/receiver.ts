import { createHmac } from 'node:crypto'
import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

export type Received = { path: string; headers: IncomingHttpHeaders; body: string; event: any; at: number }

export type Receiver = {
  url: string
  port: number
  /** In the order they came. */
  requests: Received[]
  /** Requests that were being answered concurrently, at most. */
  most: number
  /** What every request gets from now on; a number is a status. */
  answer: number | ((request: Received, response: ServerResponse) => unknown)
  close(): Promise<void>
}

/** A receiver of webhooks on 127.0.0.1 that answers 200 by default. */
export async function startReceiver(answer: Receiver['answer'] = 200): Promise<Receiver> {
  let inFlight = 0
  const server = createServer((request, response) => {
    inFlight += 1
    receiver.most = Math.max(receiver.most, inFlight)
    response.on('close', () => {
      inFlight -= 1
    })
    const chunks: Buffer[] = []
    request.on('error', () => {})
    request.on('data', chunk => chunks.push(chunk))
    request.on('end', () => {
      const body = Buffer.concat(chunks).toString('utf8')
      const received = {
        path: request.url as string,
        headers: request.headers,
        body,
        event: JSON.parse(body),
        at: performance.now(),
      }
      receiver.requests.push(received)
      if (typeof receiver.answer === 'function') receiver.answer(received, response)
      else {
        response.statusCode = receiver.answer
        response.end('answered')
      }
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const receiver: Receiver = {
    url: `http://127.0.0.1:${port}/hook`,
    port,
    requests: [],
    most: 0,
    answer,
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
  return receiver
}

/** The parts of a signature header, and whether each `v1` verifies with the secret. */
export function readSignature(request: Received, secret: string): { t: number; verified: boolean[] } {
  const parts = String(request.headers['x-svc-signature'])
    .split(',')
    .map(part => part.split('=') as [string, string])
  const t = Number(parts.find(([name]) => name === 't')?.[1])
  const expected = createHmac('sha256', secret).update(`${t}.${request.body}`).digest('hex')
  return { t, verified: parts.filter(([name]) => name === 'v1').map(([, hex]) => hex === expected) }
}
