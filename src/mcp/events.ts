import { PassThrough } from 'node:stream'
import { eventMessage } from '#core/api/event-stream.ts'
import type { MountExchange } from '#core/http/mounts.ts'

const KEEP_ALIVE_MS = 15_000

/** Event stream of a response that sends messages before its result. */
export class SseWriter {
  readonly #stream = new PassThrough()
  readonly #timer: NodeJS.Timeout

  constructor({ res, stream }: MountExchange) {
    res.setHeader('Cache-Control', 'no-cache, no-transform')
    res.setHeader('X-Accel-Buffering', 'no')
    stream(200, 'text/event-stream', this.#stream)
    this.#timer = setInterval(() => this.#stream.write(': keepalive\n\n'), KEEP_ALIVE_MS)
    this.#stream.once('close', () => clearInterval(this.#timer))
  }

  send(message: object): void {
    if (!this.#stream.destroyed) this.#stream.write(frame(message))
  }

  end(message?: object): void {
    clearInterval(this.#timer)
    this.#stream.end(message && frame(message))
  }
}

const frame = (message: object): string => eventMessage(null, 'message', JSON.stringify(message))
