import type { Readable } from 'node:stream'
import { dataMessage } from '#core/api/event-stream.ts'
import type { FrameFormat } from '#core/api/frame-format.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import { type CallInput, callOperation, type MountRequest, type MountSurface } from './call.ts'

type Translate = (event: string, data: Record<string, any>) => Promise<readonly object[]>

/** Formats the frames of a stream as events of a protocol. */
class EventFormat implements FrameFormat {
  /** Set by the reader of the stream, before it reads. */
  translate: Translate = async () => []
  /** Set to end the stream before its last frame. */
  isEnded = false

  readonly ended = () => this.isEnded

  readonly frame = ({ event, data }: { event: string; data: string }) => this.#messages(event, parseExactJson(data))

  readonly refused = async (refusal: object): Promise<string> => {
    const messages = []
    for await (const message of this.#messages('error', refusal)) messages.push(message)
    return messages.join('')
  }

  async *#messages(event: string, data: Record<string, any>): AsyncGenerator<string> {
    for (const translated of await this.translate(event, data)) yield dataMessage(translated)
  }
}

/** A stream whose frames its reader translates. */
export type TranslatedStream = { stream: Readable; format: EventFormat }

/** Calls an operation that responds with a stream, for its frames to be translated. @throws the errors of the operation */
export async function openTranslated(
  request: MountRequest,
  surface: MountSurface,
  operation: string,
  { client, ...input }: CallInput,
): Promise<TranslatedStream> {
  const format = new EventFormat()
  const { stream } = await callOperation(request, surface, operation, { ...input, client: { ...client, format } })
  return { stream: stream as Readable, format }
}
