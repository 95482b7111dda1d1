import type { Readable } from 'node:stream'
import { dataMessage } from '../../core/api/event-stream.ts'
import type { FrameFormat } from '../../core/api/frame-format.ts'
import type { AgUiEvent } from './events.ts'

type Translate = (event: string, data: Record<string, any>) => Promise<readonly AgUiEvent[]>

/** Formats the frames of a turn as events of the protocol. */
export class EventFormat implements FrameFormat {
  /** Set by the reader of the stream, before it reads. */
  translate: Translate = async () => []

  readonly frame = ({ event, data }: { event: string; data: string }) => this.#messages(event, JSON.parse(data))

  readonly refused = async (refusal: object): Promise<string> => {
    const messages = []
    for await (const message of this.#messages('error', refusal)) messages.push(message)
    return messages.join('')
  }

  async *#messages(event: string, data: Record<string, any>): AsyncGenerator<string> {
    for (const translated of await this.translate(event, data)) yield dataMessage(translated)
  }
}

/** A turn whose frames the run shows. */
export type ShownTurn = { generation_id: string; stream: Readable; format: EventFormat }
