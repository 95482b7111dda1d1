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

/**
 * The response with a body that fails with RemoteBodyError beyond `maxBytes`, counted after decoding. Readers hold a body
 * in memory, and parsed JSON takes up to 23 times its size. In a stream of events the limit is that of one event.
 * @throws RemoteBodyError for more than one content coding: stacked, 2 KB unpack to gigabytes
 */
export function limitBody(response: Response, maxBytes: number): Response {
  const { body, headers } = response
  if (!body) return response
  const coding = headers.get('content-encoding')
  if (coding?.includes(',')) {
    body.cancel().catch(() => {})
    throw new RemoteBodyError(`the answer is encoded more than once: ${coding.slice(0, 100)}`)
  }
  // The HTTP client enforces a declared length, which is that of the encoded body.
  if (!coding && Number(headers.get('content-length') ?? Number.NaN) <= maxBytes) return response
  const events = EVENT_STREAM.test(headers.get('content-type') ?? '')
  const most = events ? maxBytes * STREAM_FACTOR : maxBytes
  let size = 0
  let event = 0
  let end = ''
  const counted = new TransformStream<Uint8Array, Uint8Array>({
    transform(chunk, controller) {
      size += chunk.length
      event += chunk.length
      if (events) {
        const text = end + Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength).toString('latin1')
        for (const { index } of text.matchAll(NEXT_EVENT)) event = text.length - index
        end = text.slice(-NEXT_EVENT_LENGTH)
      }
      const limit = event > maxBytes ? maxBytes : most
      if (size > limit)
        controller.error(new RemoteBodyError(`the answer is larger than fits: more than ${limit} bytes`))
      else controller.enqueue(chunk)
    },
  })
  const { status, statusText } = response
  return new Response(body.pipeThrough(counted), { status, statusText, headers: [...headers] })
}

/** `fetch` for hosts that a vendor or the operator chose, with a bounded body. */
export const boundedFetch =
  (maxBytes: number): typeof globalThis.fetch =>
  async (input, init) => {
    const headers = new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined))
    if (!headers.has('accept-encoding')) headers.set('accept-encoding', ACCEPT_ENCODING)
    return limitBody(await fetch(input, { ...init, headers }), maxBytes)
  }
