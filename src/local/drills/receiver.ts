import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'

/** A call that the receiver accepted: of a tool by its idempotency key, of a webhook by the ID of its event. */
export type Call = { path: string; key: string; at: number; resource: string | null }

export type Receiver = {
  /** Address of the tools, which have a path for each kind of work. */
  toolUrl: string
  /** Address of the webhook. */
  hookUrl: string
  /** Accepted calls in the order of their arrival. */
  calls: Call[]
  /** Whether deliveries are accepted, refused with 503, or never answered. */
  deliveries: 'accepted' | 'refused' | 'unanswered'
  close(): Promise<void>
}

export type ReceiverOptions = {
  /** Address to listen on, default 127.0.0.1. */
  host?: string
  /** For tests of the reconciliation: the calls to record in place of an accepted one. */
  record?: (call: Call) => Call[]
}

/** Time that a tool takes, so that processes are lost during calls too. */
const TOOL_MS = 50

/** Starts the tool server and receiver of webhooks of a drill. */
export async function startReceiver({
  host = '127.0.0.1',
  record = call => [call],
}: ReceiverOptions = {}): Promise<Receiver> {
  const server = createServer({ keepAliveTimeout: 0 }, async (request, response) => {
    response.on('error', () => {})
    const parts: Buffer[] = []
    try {
      for await (const part of request) parts.push(part)
    } catch {
      return
    }
    const path = request.url ?? '/'
    const isDelivery = path === '/hook'
    if (isDelivery && receiver.deliveries === 'unanswered') return
    if (isDelivery && receiver.deliveries === 'refused') return answer(response, 503)
    const body = isDelivery ? JSON.parse(Buffer.concat(parts).toString()) : null
    const key = isDelivery ? body.id : String(request.headers['idempotency-key'])
    const call = { path, key, at: Date.now(), resource: body?.data?.id ?? null }
    receiver.calls.push(...record(call))
    if (!isDelivery) await sleep(TOOL_MS)
    answer(response, 200)
  })
  await new Promise<void>(resolve => server.listen(0, host, resolve))
  const url = `http://${host}:${(server.address() as AddressInfo).port}`
  const receiver: Receiver = {
    toolUrl: `${url}/tools`,
    hookUrl: `${url}/hook`,
    calls: [],
    deliveries: 'accepted',
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
  return receiver
}

const answer = (response: ServerResponse, status: number) =>
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify({ ok: status === 200 }))
