/** What requests ask for. One coding is worth its cost for long lists and vectors; stacked ones serve only to exhaust a reader. */
export const ACCEPT_ENCODING = 'gzip'

/** A stream of events may be so many times as large as one event. */
const EVENTS = 4
const EVENT_STREAM = /^text\/event-stream\b/i
/** Where an event of a stream begins. In no JSON text does a line begin with one of these words. */
const NEXT_EVENT = /\n\r?\n(?:data|event|id):/g
const NEXT_EVENT_LENGTH = 9

/** A remote body that is not read, or not to its end. */
export class RemoteBodyError extends Error {}

/**
 * The response with a body that fails with RemoteBodyError beyond `maxBytes`, counted after decoding: whoever reads it
 * holds it whole, and JSON takes up to 23 times its bytes once it is parsed. Of a stream of events each is so bounded.
 * @throws RemoteBodyError for more than one content coding
 */
export function limitBody(response: Response, maxBytes: number): Response {
  const { body, headers } = response
  if (!body) return response
  const coding = headers.get('content-encoding')
  if (coding?.includes(',')) {
    body.cancel().catch(() => {})
    throw new RemoteBodyError(`the answer is encoded more than once: ${coding.slice(0, 100)}`)
  }
  // A length without a coding is kept to by the HTTP client.
  if (!coding && Number(headers.get('content-length') ?? Number.NaN) <= maxBytes) return response
  const events = EVENT_STREAM.test(headers.get('content-type') ?? '')
  const most = events ? maxBytes * EVENTS : maxBytes
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
