import { beginHostCall, type HostCall } from './hanging-calls.ts'

/** Accept-Encoding of requests. Lists of models and vectors compress well, and every server supports gzip. */
export const ACCEPT_ENCODING = 'gzip'

/** Limit of an event stream, as a multiple of the limit of one event. */
const STREAM_FACTOR = 4
const EVENT_STREAM = /^text\/event-stream\b/i
/** The start of an event. No line of a JSON text begins with one of these words, so JSON cannot pass for a stream. */
const NEXT_EVENT = /\n\r?\n(?:data|event|id):/g
const NEXT_EVENT_LENGTH = 9

/** A remote body was refused, or exceeded a limit while it was read. */
export class RemoteBodyError extends Error {}

/** Bytes that start or separate JSON values: commas, brackets and braces, including those in strings. */
const VALUE_BYTES = new Set(Buffer.from(',[{'))
const LINE_FEED = 0x0a
/** Lines allowed per value: formatted JSON has about one, and event parsers may rescan the buffer for each line. */
const LINES_PER_VALUE = 2

/**
 * Limits of a decoded body, or of each event of a stream: bytes, and the approximate number of JSON values and lines.
 */
export type BodyLimits = { maxBytes: number; maxValues?: number }

/**
 * Returns the response with a body that fails with RemoteBodyError beyond its limits, which count decoded bytes.
 * Readers keep a body in memory, and parsed JSON takes up to 23 times its size: 4.5 million empty objects in 13 MB
 * blocked a process for 25 s. In an event stream the limits apply to each event.
 * @throws RemoteBodyError for more than one content coding, by which 2 KB can decode to gigabytes
 */
export function limitBody(
  response: Response,
  { maxBytes, maxValues }: BodyLimits,
  call: HostCall | null = null,
): Response {
  const { body, headers } = response
  if (!body) return response
  const coding = headers.get('content-encoding')
  if (coding?.includes(',')) {
    body.cancel().catch(() => {})
    throw new RemoteBodyError(`response has more than one content coding: ${coding.slice(0, 100)}`)
  }
  // The HTTP client enforces the declared length, which is the length of the encoded body.
  const declared = coding ? Number.NaN : Number(headers.get('content-length') ?? Number.NaN)
  // Each value takes at least one byte. The bytes of a call may not arrive.
  if (!call && declared <= Math.min(maxBytes, maxValues ?? maxBytes)) return response
  const isEventStream = EVENT_STREAM.test(headers.get('content-type') ?? '')
  const maxTotal = isEventStream ? maxBytes * STREAM_FACTOR : maxBytes
  let size = 0
  let event = 0
  let values = 0
  let lines = 0
  let end = ''
  /** Returns the offsets at which events start in a chunk, negative for a start in the previous one. */
  const findEventStarts = (chunk: Uint8Array): number[] => {
    const before = end.length
    const text = end + Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength).toString('latin1')
    end = text.slice(-NEXT_EVENT_LENGTH)
    return [...text.matchAll(NEXT_EVENT)].map(({ index }) => index - before)
  }
  /** Counts a chunk. Returns the limit that it exceeds, or null. */
  const exceededBy = (chunk: Uint8Array): string | null => {
    const starts = isEventStream || maxValues !== undefined ? findEventStarts(chunk) : []
    size += chunk.length
    event += chunk.length
    // A stream without the content type of one has the byte limit of a single response.
    if (isEventStream && starts.length > 0) event = chunk.length - (starts.at(-1) as number)
    const limit = event > maxBytes ? maxBytes : maxTotal
    if (size > limit) return `${limit} bytes`
    if (maxValues === undefined) return null
    let at = 0
    for (const next of [...starts, chunk.length]) {
      for (; at < next; at++) {
        if (VALUE_BYTES.has(chunk[at])) values++
        else if (chunk[at] === LINE_FEED) lines++
      }
      if (values > maxValues) return `${maxValues} values`
      if (lines > LINES_PER_VALUE * maxValues) return `${LINES_PER_VALUE * maxValues} lines`
      if (next < chunk.length) values = lines = 0
    }
    return null
  }
  const reader = body.getReader()
  // A TransformStream takes 60 us for each response, this 10.
  const counted = new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        call?.await()
        const { done, value } = await reader.read().finally(() => call?.end())
        if (done) return controller.close()
        const exceeded = exceededBy(value)
        if (exceeded === null) return controller.enqueue(value)
        const error = new RemoteBodyError(`response is larger than allowed: more than ${exceeded}`)
        reader.cancel(error).catch(() => {})
        throw error
      },
      cancel: reason => reader.cancel(reason),
    },
    { highWaterMark: 0 },
  )
  const { status, statusText } = response
  return new Response(counted, { status, statusText, headers: [...headers] })
}

/** Returns a `fetch` with a bounded body, for hosts chosen by a vendor or the operator. */
export const fetchWithLimit =
  (maxBytes: number, fetch = globalThis.fetch): typeof globalThis.fetch =>
  async (input, init) => {
    const headers = new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined))
    if (!headers.has('accept-encoding')) headers.set('accept-encoding', ACCEPT_ENCODING)
    const { url, signal } = input instanceof Request ? input : { url: String(input), signal: null }
    const call = await beginHostCall(new URL(url).host, init?.signal ?? signal)
    try {
      const response = await fetch(input, { ...init, headers })
      call?.answered()
      return limitBody(response, { maxBytes }, call)
    } catch (error) {
      call?.end()
      throw error
    }
  }
