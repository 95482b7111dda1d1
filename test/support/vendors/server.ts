import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseExactJson } from '#core/base/exact-json.ts'
import { anthropic } from './anthropic.ts'
import { bedrock } from './bedrock.ts'
import { embed } from './embeddings.ts'
import { type Frame, noisySse, writeFrames } from './frames.ts'
import { gemini, vertex } from './gemini.ts'
import { chat, type DialectName } from './openai-chat.ts'
import { responses, xai } from './openai-responses.ts'
import { type CacheUse, callOffered, compose, defaultReply, type Plan, type Reply, replyOf } from './plan.ts'
import { type Call, type Refusal, refusalsOf } from './rules.ts'
import type { Simulator, VendorError } from './simulator.ts'

/** A request that a simulator received, with the rules that it broke. */
export type Recorded = Call & { method: string; refusals: Refusal[]; status: number }

export type Simulators = {
  url: string
  /** Requests in the order of their arrival. */
  requests: Recorded[]
  /** Sets the answers to the calls with an API key. */
  plan(lane: string, plan: Plan): void
  /** Calls of a lane since its plan was set. */
  calls(lane: string): Recorded[]
  /** Rules that calls of a lane broke and that refused them. */
  refusals(lane?: string): string[]
  close(): Promise<void>
}

/** Each simulator once. */
export const simulators: readonly Simulator[] = [
  anthropic,
  bedrock,
  gemini,
  vertex,
  responses,
  xai,
  ...Object.values(chat),
]

/** The simulator of a path: the first segment is the vendor, the second the dialect of a custom endpoint. */
function simulatorOf(path: string): Simulator | null {
  const [, vendor = '', dialect = ''] = path.split('/')
  const isResponses = path.split('?')[0]!.endsWith('/responses')
  if (vendor === 'model' || vendor === 'foundation-models') return bedrock
  if (vendor === 'v1' || vendor === 'v1beta1') return vertex
  if (vendor === 'anthropic') return anthropic
  if (vendor === 'google') return gemini
  if (vendor === 'xai') return xai
  if (vendor === 'openai' || vendor === 'azure') return isResponses ? responses : chat.openai
  if (vendor === 'custom') return chat[dialect as DialectName] ?? null
  return chat[vendor as DialectName] ?? null
}

/** Returns the API key of a request, wherever its vendor has it. */
function laneOf(headers: IncomingMessage['headers'], path: string): string {
  const given = headers['x-api-key'] ?? headers['x-goog-api-key'] ?? headers['api-key']
  if (typeof given === 'string') return given
  const { authorization = '' } = headers
  const key = /^Bearer (.+)$/.exec(authorization)?.[1] ?? /Credential=([^/]+)\//.exec(authorization)?.[1]
  return key ?? new URL(path, 'http://vendor').searchParams.get('key') ?? ''
}

const MESSAGES: Record<number, string> = {
  429: 'Rate limit reached',
  529: 'Overloaded',
  503: 'The model is overloaded',
}

/** Starts the simulators of all vendors on one port, each below a path. Bedrock and Vertex have the paths of their hosts. */
export async function startSimulators(): Promise<Simulators> {
  const requests: Recorded[] = []
  const plans = new Map<string, { plan: Plan; from: number; n: number }>()
  const issued = new Map<string, Map<string, unknown>>()

  const send = (response: ServerResponse, { status, headers = {}, body }: VendorError): void => {
    if (response.destroyed) return
    response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(body))
  }

  /** The scripted reply to a call, or the default one. */
  const nextReply = (simulator: Simulator, call: Call): Reply => {
    const planned = plans.get(call.lane)
    const demand = simulator.demand(call.body)
    return planned ? callOffered(replyOf(planned.plan, call, planned.n++), demand) : defaultReply(demand)
  }

  const answerCall = async (simulator: Simulator, call: Recorded, response: ServerResponse): Promise<void> => {
    call.refusals = refusalsOf(simulator.rules, call)
    const refused = call.refusals.find(({ source }) => source !== '?')
    if (refused) {
      const { status = 400, ...error } = refused.error
      call.status = status
      return send(response, simulator.error({ status, message: refused.message, ...error }))
    }
    const reply = nextReply(simulator, call)
    if (reply.delay_ms) await sleep(reply.delay_ms)
    if (reply.error && !(call.stream && reply.stream_error)) {
      const { status, message = MESSAGES[status] ?? 'The server had an error' } = reply.error
      call.status = status
      const error = simulator.error({ ...reply.error, message })
      return send(response, { ...error, headers: { ...error.headers, ...reply.headers } })
    }
    const use: CacheUse = simulator.cache?.(call) ?? { cached: 0, written: 0 }
    const answer = compose(reply, call, simulator.callId, use)
    for (const [id, fact] of simulator.issue?.(answer, call) ?? []) call.issued.set(id, fact)
    if (!call.stream)
      return send(response, { status: 200, headers: reply.headers, body: simulator.whole(answer, call) })
    const frames = simulator.frames(answer, call)
    if (reply.stream_error) {
      const { after, message } = reply.stream_error
      frames.splice(after, frames.length, simulator.errorFrame({ status: 500, ...reply.error, message }))
    }
    response.writeHead(200, {
      'content-type': simulator.encode ? 'application/vnd.amazon.eventstream' : 'text/event-stream; charset=utf-8',
      'cache-control': 'no-cache',
      ...reply.headers,
    })
    const encode = (frame: Frame) => simulator.encode?.(frame) ?? noisySse(frame, reply.noise ?? simulator.noise)
    await writeFrames(response, frames.map(encode), reply)
  }

  const handle = async (request: IncomingMessage, response: ServerResponse, text: string): Promise<void> => {
    const { method = '', url: path = '', headers } = request
    const simulator = simulatorOf(path)
    const body = text === '' ? {} : parseExactJson(text)
    const lane = laneOf(headers, path)
    const memory = issued.get(lane) ?? new Map<string, unknown>()
    issued.set(lane, memory)
    const read = simulator?.read(path, body)
    const call: Recorded = {
      vendor: simulator?.name ?? '',
      lane,
      model: read?.model ?? String(body.model ?? ''),
      stream: read?.stream ?? false,
      method,
      path,
      headers,
      body,
      issued: memory,
      refusals: [],
      status: 200,
    }
    requests.push(call)
    if (simulator && read && method === 'POST') return answerCall(simulator, call, response)
    if (path.endsWith('/embeddings')) {
      const { refusals, answer } = embed(call)
      Object.assign(call, { refusals, status: answer.status })
      return send(response, answer)
    }
    if (simulator && method === 'GET')
      return send(response, { status: 200, headers: simulator.listingHeaders, body: simulator.listing })
    call.status = 404
    send(response, { status: 404, body: { error: { message: `Unknown request URL: ${method} ${path}` } } })
  }

  const server = createServer((request, response) => {
    const pieces: Buffer[] = []
    response.on('error', () => {})
    request.on('error', () => {})
    request.on('data', piece => pieces.push(piece))
    request.on('end', () => {
      handle(request, response, Buffer.concat(pieces).toString()).catch(error => {
        send(response, { status: 500, body: { error: { message: `simulator: ${error.stack}` } } })
      })
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const of = (lane: string) => {
    const from = plans.get(lane)?.from ?? 0
    return requests.filter((request, index) => index >= from && request.lane === lane && request.method === 'POST')
  }
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    plan: (lane, plan) => void plans.set(lane, { plan, from: requests.length, n: 0 }),
    calls: of,
    refusals: lane =>
      (lane === undefined ? requests : of(lane)).flatMap(({ refusals }) =>
        refusals.filter(({ source }) => source !== '?').map(({ message }) => message),
      ),
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}
