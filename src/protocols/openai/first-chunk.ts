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
