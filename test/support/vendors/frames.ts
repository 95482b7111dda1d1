import type { ServerResponse } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Noise, Reply } from './plan.ts'

/** A part of a stream. `data` is sent as JSON unless it is a text. */
export type Frame = { event?: string; data: unknown }

/** Encodes a frame as a server-sent event. Half surrogate pairs are escaped, as JSON encoders do. */
export function sseFrame({ event, data }: Frame): string {
  const text = typeof data === 'string' ? data : JSON.stringify(data)
  return `${event ? `event: ${event}\n` : ''}data: ${text}\n\n`
}

const NOISE: Record<Exclude<Noise, 'crlf'>, string> = { comments: ': keep-alive\n\n', empty: 'data:\n\n' }

/** Encodes a frame with the lines without meaning that a stream may contain. */
export function noisySse(frame: Frame, noise: readonly Noise[] = []): string {
  const before = noise.map(kind => (kind === 'crlf' ? '' : NOISE[kind])).join('')
  const text = before + sseFrame(frame)
  return noise.includes('crlf') ? text.replaceAll('\n', '\r\n') : text
}

/** Writes the frames of a stream with the delays and the cut of a reply. */
export async function writeFrames(
  response: ServerResponse,
  frames: readonly (string | Uint8Array)[],
  { cut, chunk_delay_ms = 0 }: Pick<Reply, 'cut' | 'chunk_delay_ms'>,
): Promise<void> {
  response.flushHeaders()
  for (const [index, frame] of frames.entries()) {
    if (cut && index >= cut.after) break
    if (chunk_delay_ms > 0 && index > 0) await sleep(chunk_delay_ms)
    if (response.destroyed) return
    response.write(frame)
  }
  if (!cut?.reset) return void response.end()
  // Sent frames would be lost with the connection.
  await sleep(20)
  response.destroy()
}
