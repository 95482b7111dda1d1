import type { Reading } from './client.ts'
import { NoAnswer } from './errors.ts'
import { bytesOf, chunksOf, IDLE_MS, MESSAGE_MAX_BYTES } from './limits.ts'

/** Content of an answer that is not JSON. It is read once; unread content keeps a connection open until `close()`. */
export class Download<Line = unknown> {
  /** Content type. */
  readonly type: string
  /** Size in bytes; null if the service does not send it. */
  readonly size: number | null
  /** Name of the file, of downloads of files. */
  readonly filename: string | null
  readonly #body: ReadableStream<Uint8Array> | null
  readonly #reading: Reading
  readonly close: () => void

  constructor({ headers, body }: Response, reading: Reading) {
    const length = headers.get('content-length')
    this.type = headers.get('content-type') ?? ''
    this.size = length === null || headers.has('content-encoding') ? null : Number(length)
    this.filename = filenameIn(headers.get('content-disposition') ?? '')
    this.#body = body
    this.#reading = reading
    this.close = reading.keep()
  }

  /** Yields the bytes as they arrive. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    try {
      yield* chunksOf(this.#body, { signal: this.#reading.signal, idleMs: IDLE_MS })
    } finally {
      this.close()
    }
  }

  /** Returns the bytes as a stream. */
  stream(): ReadableStream<Uint8Array> {
    const chunks = this[Symbol.asyncIterator]()
    return new ReadableStream({
      async pull(controller) {
        const { done, value } = await chunks.next()
        if (done) controller.close()
        else controller.enqueue(value)
      },
      async cancel() {
        await chunks.return(undefined)
      },
    })
  }

  /** Reads at most 256 MiB. */
  async bytes(): Promise<Uint8Array<ArrayBuffer>> {
    try {
      return await bytesOf(this.#body, { signal: this.#reading.signal, idleMs: IDLE_MS })
    } finally {
      this.close()
    }
  }

  /** Reads at most 256 MiB of UTF-8. */
  async text(): Promise<string> {
    return new TextDecoder().decode(await this.bytes())
  }

  /** Yields the records of an export, which has one in each line. */
  async *lines(): AsyncGenerator<Line> {
    const decoder = new TextDecoder()
    let rest = ''
    for await (const chunk of this) {
      const lines = (rest + decoder.decode(chunk, { stream: true })).split('\n')
      rest = lines.pop() as string
      if (rest.length > MESSAGE_MAX_BYTES) throw new NoAnswer('too_large', 'a line is larger than 16 MiB')
      for (const line of lines) if (line) yield this.#reading.parseJson(line) as Line
    }
    if (rest) yield this.#reading.parseJson(rest) as Line
  }
}

/** Returns the file name of a Content-Disposition: the encoded form, which has every character, before the plain one. */
function filenameIn(disposition: string): string | null {
  const encoded = /filename\*=UTF-8''([^;]+)/i.exec(disposition)?.[1]
  if (encoded) return decodeURIComponent(encoded)
  return /filename="((?:[^"\\]|\\.)*)"/i.exec(disposition)?.[1].replace(/\\(.)/g, '$1') ?? null
}
