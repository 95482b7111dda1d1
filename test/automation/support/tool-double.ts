import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

/**
 * How the double treats a call, as the call's own arguments say: `fail` attempts end with `status` before one gives
 * `value`; `slow` is in milliseconds.
 */
export type Script = { fail?: number | null; status?: number | null; value?: unknown; slow?: number | null }

/** A call under the key of a node: which run, node and attempt it belongs to, and which poll of it. */
export type KeyParts = { run: string; node: string; attempt: number; poll: number | null }

export type ToolCall = KeyParts & { key: string; input: Script; status: number; at: number; held: boolean }

export type ToolDouble = {
  url: string
  /** Calls with a key, in the order they came. */
  calls: ToolCall[]
  /** Calls whose Idempotency-Key is missing or not the key of a node. */
  strange: (string | undefined)[]
  /** Holds the calls that answer true until `release` is called. */
  hold: (call: ToolCall) => boolean
  release(): void
  close(): Promise<void>
}

/** The parts of `<run id>:<node id>:<attempt>`, followed by the number of a poll; null for anything else. */
export function partsOf(key: string): KeyParts | null {
  const match = /^(orch_run_[^:]+):([A-Za-z0-9_-]+):([1-9]\d*)(?::([1-9]\d*))?$/.exec(key)
  return match && { run: match[1], node: match[2], attempt: Number(match[3]), poll: match[4] ? Number(match[4]) : null }
}

/** What the double answers a call; what a test predicts with. */
export function answerTo(input: Script, { attempt, poll }: Pick<KeyParts, 'attempt' | 'poll'>) {
  const status = attempt <= (input.fail ?? 0) ? (input.status ?? 500) : 200
  return { status, body: status === 200 ? { value: input.value ?? null, attempt, poll } : { refused: attempt } }
}

/**
 * A tool on 127.0.0.1 whose answer follows from the arguments and the Idempotency-Key of a call alone, so that a call
 * that is repeated under its key is answered as before.
 */
export async function startToolDouble(): Promise<ToolDouble> {
  let held: (() => void)[] = []
  const server = createServer((request, response) => {
    const chunks: Buffer[] = []
    request.on('error', () => {})
    request.on('data', chunk => chunks.push(chunk))
    request.on('end', () => {
      const header = request.headers['idempotency-key']
      const key = Array.isArray(header) ? header.join() : (header ?? '')
      const parts = partsOf(key)
      if (!parts) {
        double.strange.push(key)
        return response.writeHead(418).end()
      }
      const input = JSON.parse(Buffer.concat(chunks).toString('utf8') || '{}') as Script
      const { status, body } = answerTo(input, parts)
      const call = { ...parts, key, input, status, at: Date.now(), held: false }
      double.calls.push(call)
      const send = () => reply(response, status, body)
      call.held = double.hold(call)
      if (call.held) held.push(send)
      else if (input.slow) setTimeout(send, input.slow)
      else send()
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const double: ToolDouble = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/tool`,
    calls: [],
    strange: [],
    hold: () => false,
    release() {
      const free = held
      held = []
      for (const send of free) send()
    },
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
  return double
}

function reply(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
}
