import { Transform } from 'node:stream'
import { StringDecoder } from 'node:string_decoder'
import type { ClientInput } from '../api/call.ts'
import type { EndUserAccess, EndUserView } from '../api/end-user.ts'
import { endUserError, endUserFailure, showToEndUser } from '../api/end-user.ts'
import type { KindRow } from '../api/kind.ts'
import { type Operation, type OperationResult, result } from '../api/operation.ts'
import { AppError, errorBody, raise } from '../base/errors.ts'
import { parseExactJson } from '../base/exact-json.ts'
import type { Fragment } from '../db/sql.ts'
import type { Caller, EndUser } from '../iam/caller.ts'
import { type EndUserSpend, endUserLimits, endUserStreams } from './hooks.ts'
import type { Invocation } from './invocation.ts'

/**
 * Step: narrows a call by an end user to what the operation opens to end users: its fields, its rows, and what the response
 * shows. The permissions of the principal that issued the token are decided as for any call.
 */

const PAGING = ['limit', 'offset', 'from', 'to']

/** Refuses a call that its token does not open, before anything is read. Raises FORBIDDEN. */
export function requireEndUserAccess({ operation, call, body }: Invocation, endUser: EndUser): void {
  const access = operation.endUser
  if (!access) raise('FORBIDDEN')
  if (!endUser.scopes.includes(access.scope)) raise('FORBIDDEN', { meta: { scope: access.scope } })
  const parameters = [...(access.query ?? []), ...(operation.paged ? PAGING : [])]
  for (const parameter of Object.keys(call.query))
    if (!parameters.includes(parameter)) raise('FORBIDDEN', { meta: { parameter } })
  const field = refusedField(access, (body ?? {}) as Record<string, unknown>)
  if (field !== undefined) raise('FORBIDDEN', { meta: { field } })
}

const refusedField = ({ fields = [], refuses }: EndUserAccess, body: Record<string, unknown>): string | undefined =>
  Object.keys(body).find(name => !fields.includes(name)) ?? refuses?.(body)

/** Counts a call against the limits of the token. Raises ACTOR_LIMIT_EXCEEDED. */
export async function countEndUserCall(inv: Invocation, endUser: EndUser): Promise<void> {
  const { operation, body, services, call } = inv
  const { sends, starts } = operation.endUser ?? {}
  const startsOwn = starts && !call.client?.counted && !call.client?.attach
  const spend: EndUserSpend = {
    messages: sends || startsOwn ? 1 : 0,
    chars: textLength((body ?? {}) as Record<string, unknown>),
  }
  await endUserLimits.only()?.(services, endUser, spend)
}

/**
 * Takes a stream of the end user for a call that opens one, before it starts any work, so that streams of turns and of
 * sessions and repeats of requests count alike. Raises STREAM_LIMIT_EXCEEDED.
 */
export async function takeStream(inv: Invocation, endUser: EndUser): Promise<void> {
  const { operation, services } = inv
  const { request } = inv.call
  const body = (inv.body ?? {}) as Record<string, unknown>
  const opens =
    operation.endUser?.streams?.(body) ??
    (operation.stream !== undefined && (operation.method === 'get' || body.stream === true))
  if (!opens) return
  const take = endUserStreams.only()
  if (take) inv.releaseStream = await take(services, endUser, () => request.onRevoked?.())
}

/** Releases the stream of a call with the end of its response; immediately if the response is none. */
export function releaseStream({ releaseStream }: Invocation, response: OperationResult | undefined): void {
  if (!releaseStream) return
  const { stream } = response ?? {}
  if (stream && !stream.closed) stream.once('close', releaseStream)
  else releaseStream()
}

/**
 * Returns the number of characters that a model reads: texts of a message, descriptions of its images, a reason, outputs of
 * tools.
 */
function textLength({ message, parts, reason, tool_outputs }: Record<string, unknown>): number {
  const texts = Array.isArray(parts)
    ? parts.flatMap((part: { text?: unknown; alt?: unknown } | null) => [part?.text, part?.alt])
    : []
  const outputs = Array.isArray(tool_outputs)
    ? tool_outputs.map((entry: { output?: unknown } | null) =>
        typeof entry?.output === 'string' ? entry.output : JSON.stringify(entry?.output),
      )
    : []
  return [message, reason, ...texts, ...outputs].reduce(
    (sum: number, text) => sum + (typeof text === 'string' ? text.length : 0),
    0,
  )
}

/** Whether an item belongs to the end user of a call; true for other callers. */
export async function isOwnItem({ operation, db }: Invocation, { end_user }: Caller, row: KindRow): Promise<boolean> {
  if (!end_user) return true
  return (await operation.endUser?.owns?.(row, end_user, db)) ?? false
}

/** Returns the condition of the own rows of a list. */
export const ownRows = ({ id, endUser }: Operation, caller: EndUser): Fragment =>
  endUser?.rows?.(caller) ?? fail(`operation ${id} declares no rows for end users`)

const fail = (message: string): never => {
  throw new Error(message)
}

const SHOWN_HEADERS: ReadonlySet<string> = new Set([
  'accept-ranges',
  'cache-control',
  'content-disposition',
  'content-length',
  'content-range',
  'content-security-policy',
  'idempotency-replayed',
  'retry-after',
  'x-content-type-options',
])

/** Returns a response as the end user of the call sees it. */
export function endUserResult({ operation, services, call }: Invocation, response: OperationResult): OperationResult {
  const { status, body, stream, contentType } = response
  const access = operation.endUser as EndUserAccess
  const headers = Object.fromEntries(
    Object.entries(response.headers ?? {}).filter(([name]) => SHOWN_HEADERS.has(name.toLowerCase())),
  )
  if (access.presented) return { ...response, headers }
  if (stream) {
    if (contentType !== 'text/event-stream') {
      if (!access.bytes) throw new Error(`operation ${operation.id} declares no bytes for end users`)
      return { ...response, headers }
    }
    // The format of a mount gets what the end user sees.
    if (call.client?.format) return { ...response, headers }
    const events = projectEvents(eventViews(access, call))
    stream.on('error', error => events.destroy(error))
    events.on('close', () => stream.destroy())
    return { ...response, headers, stream: stream.pipe(events) }
  }
  // A stored refusal of an earlier request with the same key.
  if (status >= 400) return result(status, shownErrorBody(body, services.config.DOCS_BASE_URL), headers)
  if (body === undefined || body === null) return result(status, body, headers)
  if (!access.view) throw new Error(`operation ${operation.id} declares no view for end users`)
  return result(status, operation.paged ? shownPage(access.view, body) : showToEndUser(access.view, body), headers)
}

type EventViews = NonNullable<EndUserAccess['events']>

const eventViews = (access: EndUserAccess, { client }: Invocation['call']): EventViews => ({
  ...access.events,
  ...(client && access.mountEvents),
})

/** Returns what a mount adds to a call. Its format gets the frames of a turn as an end user sees them. */
export function shownClient({ operation, call }: Invocation, caller: Caller): ClientInput | null {
  const { client = null } = call
  const access = operation.endUser
  if (!client?.format || !caller.end_user || !access) return client
  const { format } = client
  const views = eventViews(access, call)
  return {
    ...client,
    format: {
      ...format,
      async *frame(frame) {
        const shown = shownData(views, frame.event, parseExactJson(frame.data))
        if (shown !== null) yield* format.frame({ ...frame, data: JSON.stringify(shown) })
      },
      refused: format.refused && (refusal => format.refused?.(endUserFailure(refusal) ?? refusal) ?? ''),
    },
  }
}

/** Returns the data of an event as an end user sees it; null for an event that is not shown. */
function shownData(views: EventViews, event: string, data: any): object | null {
  const view = Object.hasOwn(views, event) ? views[event] : undefined
  if (view) return showToEndUser(view, data)
  return event === 'error' ? endUserFailure(data) : null
}

function shownPage(view: EndUserView, body: unknown): object {
  const { data, total, limit, offset } = body as { data: object[]; total: number; limit: number; offset: number }
  return { data: data.map(record => showToEndUser(view, record)), total, limit, offset }
}

function shownErrorBody(body: unknown, docsBaseUrl: string): object {
  const { code, message, meta } = (body as ReturnType<typeof errorBody>).error
  return errorBody(endUserError(new AppError(code, { message, meta })), docsBaseUrl)
}

/** Converts server-sent events one by one. Omits events without a view; comments pass. */
function projectEvents(views: EventViews): Transform {
  const decoder = new StringDecoder('utf8')
  let pending = ''
  return new Transform({
    transform(chunk: Buffer, _encoding, done) {
      const text = decoder.write(chunk)
      // A message of megabytes comes in many chunks: the earlier ones are not searched again.
      const hasEnd = (pending.slice(-1) + text).includes('\n\n')
      pending += text
      if (!hasEnd) return done()
      const messages = pending.split('\n\n')
      pending = messages.pop() as string
      try {
        const shown = messages.flatMap(message => shownMessage(views, message) ?? [])
        done(null, shown.length === 0 ? undefined : shown.map(message => `${message}\n\n`).join(''))
      } catch (error) {
        done(error as Error)
      }
    },
  })
}

const DATA = 'data: '
const EVENT = 'event: '

function shownMessage(views: EventViews, message: string): string | null {
  if (message.startsWith(':')) return message
  const lines = message.split('\n')
  const event = lines.find(line => line.startsWith(EVENT))?.slice(EVENT.length)
  const at = lines.findIndex(line => line.startsWith(DATA))
  if (event === undefined || at < 0) return null
  const shown = shownData(views, event, parseExactJson(lines[at].slice(DATA.length)))
  return shown && lines.with(at, `${DATA}${JSON.stringify(shown)}`).join('\n')
}
