import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

type Json = Record<string, any>
export type VendorCall = { body: Json; headers: IncomingHttpHeaders; response: ServerResponse; n: number }

const USAGE = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 }
const chunkOf = (delta: object, finish_reason: string | null = null) => ({
  id: 'c',
  object: 'chat.completion.chunk',
  created: 1,
  model: 'm',
  choices: [{ index: 0, delta, finish_reason }],
})

/** A vendor of the chat format whose bytes a test writes itself. */
export async function startScriptedVendor() {
  const calls: Json[] = []
  let answer = (call: VendorCall): unknown => finish(call.response, 'fine')
  const server = createServer(async (request, response) => {
    let text = ''
    for await (const chunk of request) text += chunk
    const body = JSON.parse(text) as Json
    response.on('error', () => {})
    await answer({ body, headers: request.headers, response, n: calls.push(body) })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    /** Bodies of all requests. */
    calls,
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`,
    /** Answers requests by `next`, and forgets earlier ones. `n` counts from 1. */
    script(next: (call: VendorCall) => unknown): void {
      calls.length = 0
      answer = next
    },
    close(): void {
      server.closeAllConnections()
      server.close()
    },
  }
}

/** Begins an event stream with a piece of text. */
export function begin(response: ServerResponse, text?: string): void {
  if (!response.headersSent) response.writeHead(200, { 'content-type': 'text/event-stream' })
  if (text !== undefined) response.write(`data: ${JSON.stringify(chunkOf({ role: 'assistant', content: text }))}\n\n`)
}

/** Ends an event stream with a piece of text. */
export function finish(response: ServerResponse, text: string): void {
  begin(response, text)
  response.write(`data: ${JSON.stringify(chunkOf({}, 'stop'))}\n\n`)
  response.end(`data: ${JSON.stringify({ ...chunkOf({}), choices: [], usage: USAGE })}\n\ndata: [DONE]\n\n`)
}

/** Answers with JSON. */
export function json(
  response: ServerResponse,
  status: number,
  body: object,
  headers: Record<string, string> = {},
): void {
  response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(body))
}

/** Answers with a whole completion. */
export const whole = (response: ServerResponse, text: string): void =>
  json(response, 200, {
    id: 'c',
    object: 'chat.completion',
    created: 1,
    model: 'm',
    choices: [{ index: 0, message: { role: 'assistant', content: text }, finish_reason: 'stop' }],
    usage: USAGE,
  })

/** Refuses a request. */
export const refuse = (
  response: ServerResponse,
  status: number,
  error: object = { message: 'refused' },
  headers?: Record<string, string>,
): void => json(response, status, { error }, headers)
