import { createHash } from 'node:crypto'
import { createServer, type IncomingHttpHeaders } from 'node:http'
import type { AddressInfo } from 'node:net'

export type EmbeddingCall = {
  path: string
  headers: IncomingHttpHeaders
  body: any
  /** The requested texts. */
  texts: string[]
  at: number
  /** The client hung up before it was answered. */
  abandoned: boolean
}

/** What a call is answered: an error, something that is no answer, or the vectors given. Absent: vectors of the texts. */
export type Behaviour = {
  status?: number
  headers?: Record<string, string>
  body?: unknown
  delayMs?: number
  /** Answered once this is settled. */
  held?: Promise<unknown>
  /** Hangs up: before the head, or in the middle of the body. */
  hangUp?: 'at once' | 'in the body'
  /** Sends a space so often, and never ends. */
  dripMs?: number
  vectors?: number[][]
  /** Tokens reported; null reports none. */
  tokens?: number | null
}

export type EmbeddingServer = {
  url: string
  calls: EmbeddingCall[]
  /** Most calls that were unanswered at a time. */
  busiest: number
  dimensions: number
  /** Decides about every call; `calls` holds it already. */
  behave: (call: EmbeddingCall) => Behaviour
  close(): Promise<void>
}

/** A unit vector that the text alone decides. */
export function vectorOf(text: string, dimensions: number): number[] {
  const vector: number[] = []
  for (let block = 0; vector.length < dimensions; block++)
    for (const byte of createHash('sha256').update(`${block} ${text}`).digest()) vector.push(byte - 127.5)
  const cut = vector.slice(0, dimensions)
  const length = Math.hypot(...cut)
  return cut.map(value => value / length)
}

/** A server that answers embeddings like an OpenAI-compatible one, under any path. */
export async function startEmbeddingServer(dimensions: number): Promise<EmbeddingServer> {
  let waiting = 0
  const http = createServer(async (req, res) => {
    const chunks: Buffer[] = []
    for await (const chunk of req) chunks.push(chunk as Buffer)
    const body = JSON.parse(Buffer.concat(chunks).toString())
    const call: EmbeddingCall = {
      path: req.url as string,
      headers: req.headers,
      body,
      texts: body.input ?? [body.inputText],
      at: Date.now(),
      abandoned: false,
    }
    made.calls.push(call)
    waiting++
    made.busiest = Math.max(made.busiest, waiting)
    let answered = false
    res.on('close', () => {
      if (answered) return
      call.abandoned = true
      waiting--
    })
    const given = made.behave(call)
    await given.held
    if (given.delayMs) await new Promise(resolve => setTimeout(resolve, given.delayMs))
    if (res.destroyed) return
    if (given.dripMs) {
      res.writeHead(200, { 'content-type': 'application/json' })
      const drip = setInterval(() => res.write(' '), given.dripMs)
      res.on('close', () => clearInterval(drip))
      return
    }
    waiting--
    answered = true
    if (given.hangUp === 'at once') return res.destroy()
    const vectors = given.vectors ?? call.texts.map(text => vectorOf(text, made.dimensions))
    const tokens = given.tokens === undefined ? call.texts.length * 10 : given.tokens
    const answer = given.body ?? {
      object: 'list',
      embedding: vectors[0],
      data: vectors.map((embedding, index) => ({ object: 'embedding', index, embedding })),
      ...(tokens !== null && { inputTextTokenCount: tokens, usage: { prompt_tokens: tokens, total_tokens: tokens } }),
    }
    const text = typeof answer === 'string' ? answer : JSON.stringify(answer)
    res.writeHead(given.status ?? 200, { 'content-type': 'application/json', ...given.headers })
    if (given.hangUp === 'in the body') {
      res.write(text.slice(0, text.length / 2), () => res.destroy())
      return
    }
    res.end(text)
  })
  await new Promise<void>(resolve => http.listen(0, '127.0.0.1', resolve))
  const made: EmbeddingServer = {
    url: `http://127.0.0.1:${(http.address() as AddressInfo).port}`,
    calls: [],
    busiest: 0,
    dimensions,
    behave: () => ({}),
    async close() {
      http.closeAllConnections()
      await new Promise(resolve => http.close(resolve))
    },
  }
  return made
}
