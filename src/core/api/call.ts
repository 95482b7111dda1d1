import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { Readable } from 'node:stream'
import { systemClock } from '../base/clock.ts'
import { newId } from '../base/ids.ts'
import type { Caller } from '../iam/caller.ts'
import type { Tx } from '../writes/writer.ts'
import type { FrameFormat } from './frame-format.ts'
import type { Made } from './idempotency.ts'
import type { RequestCount } from './request-count.ts'

/** The surface of a call. Audit entries contain it unless it is REST. */
export type CallSurface =
  | 'rest'
  | 'mcp'
  | 'openai'
  | 'ag_ui'
  | 'ui'
  | 'a2a'
  | 'platform_tool'
  | 'formation'
  | 'trigger'
  | 'cli'

export type RequestFacts = {
  id: string
  /** Time at which the request head was read, by the clock of this process. */
  receivedAt: Date
  ip: string | null
  userAgent: string | null
  headers: IncomingHttpHeaders
  /** Aborted when the client disconnects. */
  closed: AbortSignal
  /** Counts the request; undefined without one. Shared by its calls. */
  count?: RequestCount
  /** Set by an event stream: checks the permission of the caller immediately. */
  onRevoked?: () => void
  /** Set for a streamed response while its audit entry is written. Never rejects. */
  audited?: Promise<void>
}

/** The agent turn that makes a call through a tool. */
export type Origin = {
  generation_id: string
  trace_id: string
  root_trace_id: string
  /** Remaining depth of nested agent calls. */
  depth: number
  /** Conversations whose mailboxes are occupied during the call, by the turn and the turns that wait for it. */
  conversations: readonly string[]
  /** The workload it belongs to; null for ordinary traffic. */
  source: string | null
  /** The node execution it belongs to. */
  orchestration: { run_id: string; node_id: string; attempt: number } | null
  /** The trigger that caused it. */
  trigger_id: string | null
}

/** What a protocol mount adds to a call on behalf of its client. Never part of a request body. */
export type ClientInput = {
  /** Key under which a session is found or created. */
  session_key?: string
  /** Tools of the turn that the client executes. */
  tools?: { name: string; description: string; parameters: Record<string, unknown> }[]
  /** Text for the model of the turn, given as a message of the user before the history. */
  context?: string
  /** Whether the turn waits for a running one in place of a refusal. */
  queue?: boolean
  /** Whether the turn is counted already, by a message that the request has sent. */
  counted?: boolean
  /** A turn of the session whose events after a position are streamed in place of a new turn. */
  attach?: { generation_id: string; after: number }
  /** Formats the frames of a streamed turn, as the caller may see them; default server-sent events. */
  format?: FrameFormat
  /**
   * Called in the transaction that starts or resumes a turn, with the number of its frames so far. Raises if another
   * request has begun the same run.
   */
  claim?(tx: Tx, turn: { generation_id: string; after: number }): Promise<void>
}

/** A call of an operation, on any surface. */
export type Call = {
  surface: CallSurface
  /** Resolves the caller, or null for 401. Called again after an upload, during which permissions may have changed. */
  identify(): Promise<Caller | null>
  params: Record<string, string>
  query: Record<string, unknown>
  /** Undefined if there is none. */
  body: unknown
  request: RequestFacts
  /** The requested path; part of the identity of an Idempotency-Key, with the credential. */
  path: string
  idempotencyKey?: string
  ifMatch?: string
  ifNoneMatch?: string
  origin?: Origin
  client?: ClientInput
  /** The trigger chain that caused it. */
  chain?: readonly string[]
  /** Called after the started work is committed, with the records from which a repeat is answered. */
  onMade?: (made: Made) => void
  /** The request whose body is read by the operation's `receive`. */
  upload?: IncomingMessage
  /**
   * Transaction of the caller in which the call runs: all its reads and writes use it. A refusal rolls back only the
   * writes of the call.
   */
  tx?: Tx
}

/** Returns the known caller at the first use, and identifies the credential again at later uses. */
export function identifyOnce(caller: Caller, identify: Call['identify']): Call['identify'] {
  let isFirst = true
  return () => {
    const isKnown = isFirst
    isFirst = false
    return isKnown ? Promise.resolve(caller) : identify()
  }
}

const never = new AbortController().signal

/** Returns a call by a known caller, for surfaces without an HTTP request. */
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
    client?: ClientInput
  } = {},
): Call {
  const { params = {}, query = {}, body, tx, signal = never, requestId = newId('req') } = input
  const { idempotencyKey, ifMatch, origin, client } = input
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
    client,
    chain: caller.run?.chain,
    path: JSON.stringify(params),
    request: { id: requestId, receivedAt: systemClock.now(), ip: null, userAgent: null, headers: {}, closed: signal },
  }
}

/** Returns a JSON body as a stream, for operations with `receive`. */
export function jsonUpload(body: Record<string, unknown> | undefined): IncomingMessage {
  const bytes = Buffer.from(JSON.stringify(body ?? {}))
  const headers = { 'content-type': 'application/json', 'content-length': String(bytes.length) }
  return Object.assign(Readable.from([bytes], { objectMode: false }), { headers }) as unknown as IncomingMessage
}
