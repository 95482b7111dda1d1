import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { Readable } from 'node:stream'
import type { Made } from '../api/idempotency.ts'
import { newId } from '../api/ids.ts'
import type { Tx } from '../db/writer.ts'
import type { Caller } from '../iam/caller.ts'

/** What a call came through. Audit entries name every surface but REST. */
export type CallSurface = 'rest' | 'mcp' | 'platform_tool' | 'formation' | 'trigger' | 'cli'

export type RequestFacts = {
  id: string
  /** When its head was read, by this process's clock. */
  receivedAt: Date
  ip: string | null
  userAgent: string | null
  headers: IncomingHttpHeaders
  /** Aborted when the caller goes away. */
  closed: AbortSignal
}

/** The turn of an agent that makes a call through one of its tools. */
export type Origin = {
  generation_id: string
  trace_id: string
  root_trace_id: string
  /** Calls of agents that may still nest below it. */
  depth: number
  /** Conversations whose mailboxes it occupies while it waits for the call, with those of turns that wait for it. */
  conversations: readonly string[]
  /** The workload that it is part of; null for ordinary traffic. */
  source: string | null
  /** The attempt of a node that it is part of. */
  orchestration: { run_id: string; node_id: string; attempt: number } | null
  /** The trigger that it goes back to. */
  trigger_id: string | null
}

/** One call of an operation, whatever surface it came through. */
export type Call = {
  surface: CallSurface
  /** Who calls; asked again behind an upload, which may take longer than the rights of who began it. Null is 401. */
  identify(): Promise<Caller | null>
  params: Record<string, string>
  query: Record<string, unknown>
  /** Undefined without one. */
  body: unknown
  request: RequestFacts
  /** What an Idempotency-Key is kept under, with the credential: the path as it was called. */
  path: string
  idempotencyKey?: string
  ifMatch?: string
  ifNoneMatch?: string
  origin?: Origin
  /** The triggers that led to it. */
  chain?: readonly string[]
  /** It is part of a request that counts against quotas by another call. */
  isCounted?: boolean
  /** Called once the work that the call waits for is committed, with what a repeat is answered by. */
  onMade?: (made: Made) => void
  /** The request whose body an operation that receives uploads reads itself. */
  upload?: IncomingMessage
  /**
   * A transaction of the caller's that the call becomes part of: it reads and writes there and nowhere else, a refusal
   * undoes what the call had written and leaves the transaction usable.
   */
  tx?: Tx
}

const never = new AbortController().signal

/** A call in the name of a known caller, for surfaces without a request of their own. */
export function callAs(
  caller: Caller,
  surface: Exclude<CallSurface, 'rest'>,
  input: {
    params?: Record<string, string>
    query?: Record<string, unknown>
    body?: Record<string, unknown>
    tx?: Tx
    signal?: AbortSignal
    requestId?: string
    idempotencyKey?: string
    ifMatch?: string
    origin?: Origin
  } = {},
): Call {
  const { params = {}, query = {}, body, tx, signal = never, requestId = newId('req') } = input
  const { idempotencyKey, ifMatch, origin } = input
  return {
    surface,
    identify: async () => caller,
    params,
    query,
    body,
    tx,
    idempotencyKey,
    ifMatch,
    origin,
    chain: caller.run?.chain,
    path: JSON.stringify(params),
    request: { id: requestId, receivedAt: new Date(), ip: null, userAgent: null, headers: {}, closed: signal },
  }
}

/** A JSON body for an operation that reads it as a stream. */
export function jsonUpload(body: Record<string, unknown> | undefined): IncomingMessage {
  const bytes = Buffer.from(JSON.stringify(body ?? {}))
  const headers = { 'content-type': 'application/json', 'content-length': String(bytes.length) }
  return Object.assign(Readable.from([bytes], { objectMode: false }), { headers }) as unknown as IncomingMessage
}
