import { once } from 'node:events'
import type { Readable } from 'node:stream'

/**
 * Waits for the first bytes of a stream, so that an earlier failure has its own status. Comments that keep the
 * connection open count.
 * @throws the error of the stream
 */
export const awaitFirstChunk = async (stream: Readable): Promise<void> => {
  await once(stream, 'readable')
}

/** Returns a format that marks its stream as started with the first text or reasoning: a failure after it is a part of the stream. */
export function startingWithText<F extends { text(delta: string): string; reasoning?(delta: string): string }>(
  format: F,
  state: { started: boolean },
): F {
  const { reasoning } = format
  const start = (): true => (state.started = true)
  return {
    ...format,
    text: (delta: string) => start() && format.text(delta),
    ...(reasoning && { reasoning: (delta: string) => start() && reasoning(delta) }),
  }
}
