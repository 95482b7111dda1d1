/** The Accept-Encoding of requests: lists of models and vectors compress well, and every server supports gzip. */
export const ACCEPT_ENCODING = 'gzip'

/** Limit of a stream of events, as a multiple of the limit of one event. */
const STREAM_FACTOR = 4
const EVENT_STREAM = /^text\/event-stream\b/i
/** The start of an event. No line of a JSON text starts with one of these words, so a JSON text cannot pose as a stream. */
const NEXT_EVENT = /\n\r?\n(?:data|event|id):/g
const NEXT_EVENT_LENGTH = 9

/** A remote body that was refused, or given up half way. */
export class RemoteBodyError extends Error {}

/** Bytes that start or separate values of JSON: commas, brackets and braces. Those of texts are not told apart. */
const VALUE_BYTES = new Set(Buffer.from(',[{'))
const LINE_FEED = 0x0a
/** Lines for each value: JSON that is written for people has about one. Parsers of events may read what follows each line. */
const LINES_PER_VALUE = 2

/** Of a decoded body, or of each of its events: its bytes, and about how many values of JSON and lines it holds. */
export type BodyLimits = { maxBytes: number; maxValues?: number }

/**
 * The response with a body that fails with RemoteBodyError beyond its limits, counted after decoding. Readers hold a body
 * in memory, and parsed JSON takes up to 23 times its size; 4.5 million empty objects in 13 MB held up a process for 25 s.
 * In a stream of events the limits are those of one event.
 * @throws RemoteBodyError for more than one content coding: stacked, 2 KB unpack to gigabytes
 */
export function limitBody(response: Response, { maxBytes, maxValues }: BodyLimits): Response {
  const { body, headers } = response
  if (!body) return response
  const coding = headers.get('content-encoding')
  if (coding?.includes(',')) {
    body.cancel().catch(() => {})
    throw new RemoteBodyError(`the answer is encoded more than once: ${coding.slice(0, 100)}`)
  }
  // The HTTP client enforces a declared length, which is that of the encoded body.
  const declared = coding ? Number.NaN : Number(headers.get('content-length') ?? Number.NaN)
  if (maxValues === undefined && declared <= maxBytes) return response
  const events = EVENT_STREAM.test(headers.get('content-type') ?? '')
  const most = events ? maxBytes * STREAM_FACTOR : maxBytes
  let size = 0
  let event = 0
  let values = 0
  let lines = 0
  let end = ''
  /** Where events start in a chunk; below 0 in what came before it. */
  const startsIn = (chunk: Uint8Array): number[] => {
    const before = end.length
    const text = end + Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength).toString('latin1')
    end = text.slice(-NEXT_EVENT_LENGTH)
    return [...text.matchAll(NEXT_EVENT)].map(({ index }) => index - before)
  }
  const counted = new TransformStream<Uint8Array, Uint8Array>({
    transform(chunk, controller) {
      const refuse = (what: string) =>
        controller.error(new RemoteBodyError(`the answer is larger than fits: more than ${what}`))
      const starts = events || maxValues !== undefined ? startsIn(chunk) : []
      size += chunk.length
      event += chunk.length
      // Streams that do not say that they are one have the limit in bytes of a single answer.
      if (events && starts.length > 0) event = chunk.length - (starts.at(-1) as number)
      const limit = event > maxBytes ? maxBytes : most
      if (size > limit) return refuse(`${limit} bytes`)
      if (maxValues !== undefined) {
        let at = 0
        for (const next of [...starts, chunk.length]) {
          for (; at < next; at++) {
            if (VALUE_BYTES.has(chunk[at])) values++
            else if (chunk[at] === LINE_FEED) lines++
          }
          if (values > maxValues) return refuse(`${maxValues} values`)
          if (lines > LINES_PER_VALUE * maxValues) return refuse(`${LINES_PER_VALUE * maxValues} lines`)
          if (next < chunk.length) values = lines = 0
        }
      }
      controller.enqueue(chunk)
    },
  })
  const { status, statusText } = response
  return new Response(body.pipeThrough(counted), { status, statusText, headers: [...headers] })
}

/** `fetch` for hosts that a vendor or the operator chose, with a bounded body. */
export const fetchWithLimit =
  (maxBytes: number): typeof globalThis.fetch =>
  async (input, init) => {
    const headers = new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined))
    if (!headers.has('accept-encoding')) headers.set('accept-encoding', ACCEPT_ENCODING)
    return limitBody(await fetch(input, { ...init, headers }), { maxBytes })
  }
