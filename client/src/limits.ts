import { NoAnswer } from './errors.ts'

export const MESSAGE_MAX_BYTES = 16 * 1024 * 1024
export const ANSWER_MAX_BYTES = 256 * 1024 * 1024

/** A stream without an event or a comment for this time is lost: the service sends a comment every 15 seconds. */
export const IDLE_MS = 45_000

/** Waits. Rejects with the reason of the signal once it aborts. */
export function sleep(ms: number, signal?: AbortSignal | null): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason)
    const onAbort = () => {
      clearTimeout(timer)
      reject(signal?.reason)
    }
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', onAbort)
      resolve()
    }, ms)
    signal?.addEventListener('abort', onAbort, { once: true })
  })
}

/** Returns the delay before the next try: 0.5 s doubling to 8 s, less up to a quarter. */
export const backoffMs = (tries: number): number => Math.min(500 * 2 ** tries, 8000) * (1 - Math.random() / 4)

/** Yields the chunks of a body. Each one must arrive within `idleMs` and as long as the signal has not aborted. */
export async function* chunksOf(
  body: ReadableStream<Uint8Array> | null,
  { signal, idleMs }: { signal?: AbortSignal | null; idleMs?: number } = {},
): AsyncGenerator<Uint8Array> {
  const reader = body?.getReader()
  if (!reader) return
  let stop: (error: unknown) => void = () => {}
  const stopped = new Promise<never>((_, reject) => {
    stop = reject
  })
  stopped.catch(() => {})
  const onAbort = () => stop(signal?.reason)
  if (signal?.aborted) onAbort()
  signal?.addEventListener('abort', onAbort, { once: true })
  try {
    for (;;) {
      const timer = idleMs
        ? setTimeout(() => stop(new NoAnswer('timeout', `no data for ${idleMs / 1000} s`)), idleMs)
        : undefined
      try {
        const { done, value } = await Promise.race([reader.read(), stopped])
        if (done) return
        yield value
      } finally {
        clearTimeout(timer)
      }
    }
  } catch (error) {
    if (error instanceof NoAnswer || signal?.aborted) throw error
    throw new NoAnswer('network', `the connection was lost within the answer: ${textOf(error)}`)
  } finally {
    signal?.removeEventListener('abort', onAbort)
    reader.cancel().catch(() => {})
  }
}

/** Returns the message of an error and of its cause. */
export function textOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const cause = error.cause instanceof Error ? error.cause : null
  return cause ? `${error.message}: ${cause.message || (cause as { code?: string }).code}` : error.message
}

/** Reads a body of at most 256 MiB. */
export async function bytesOf(
  body: ReadableStream<Uint8Array> | null,
  options?: Parameters<typeof chunksOf>[1],
): Promise<Uint8Array<ArrayBuffer>> {
  const chunks: Uint8Array[] = []
  let size = 0
  for await (const chunk of chunksOf(body, options)) {
    size += chunk.byteLength
    if (size > ANSWER_MAX_BYTES) throw new NoAnswer('too_large', 'the answer is larger than 256 MiB')
    chunks.push(chunk)
  }
  const all = new Uint8Array(size)
  let at = 0
  for (const chunk of chunks) {
    all.set(chunk, at)
    at += chunk.byteLength
  }
  return all
}
