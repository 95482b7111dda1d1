import { openEvents, type StreamedEvent } from '../execution/streams.ts'
import { type Client, client, eventually } from '../support/app.ts'

type Json = Record<string, any>

/** A reader of a session's stream, as a tab of a browser is one. */
export type Tab = {
  events: StreamedEvent[]
  /** Whether the server has ended the stream. */
  ended(): boolean
  /** Waits for the first event that fits, from a place in `events` on. */
  seen(fits: (event: StreamedEvent) => boolean, from?: number): Promise<StreamedEvent>
  of(name: string): Json[]
  /** ID of the last stored event. */
  last(): string
  /** Text of the turn that the tab follows. */
  text(generationId: string): string
  close(): void
}

/** Opens the stream of a session and reads it until it is closed. */
export async function openTab(
  { url, key }: { url: string; key: Client },
  session: Json,
  { after, query = '' }: { after?: string; query?: string } = {},
): Promise<Tab> {
  const headers: Record<string, string> = after === undefined ? {} : { 'last-event-id': after }
  const stream = await openEvents(
    { url, key: client(url, key.token) },
    `/sessions/${session.id}/stream${query}`,
    undefined,
    headers,
  )
  const events: StreamedEvent[] = []
  let ended = false
  let failure: unknown = null
  void (async () => {
    for await (const event of stream.messages) events.push(event)
    ended = true
  })().catch(error => {
    ended = true
    if ((error as Error).name !== 'AbortError') failure = error
  })
  return {
    events,
    ended: () => ended,
    seen: (fits, from = 0) =>
      eventually(
        () => {
          if (failure) throw failure
          return events.slice(from).find(fits)
        },
        { within: 15_000, every: 5, what: `an event after ${JSON.stringify(events.slice(-5))}` },
      ),
    of: name => events.filter(({ event }) => event === name).map(({ data }) => data),
    last: () => events.findLast(({ id }) => id !== undefined)?.id as string,
    text: id => textOf(events, id),
    close: () => stream.close(),
  }
}

/** The text that a reader has of a turn. */
export const textOf = (events: readonly Pick<StreamedEvent, 'event' | 'data'>[], generationId: string): string =>
  events.reduce((text, { event, data }) => {
    if (data.generation_id !== generationId) return text
    if (event === 'turn_text') return data.text
    return event === 'delta' ? text + data.choices[0].delta.content : text
  }, '')

export const is =
  (name: string, fields: Json = {}) =>
  ({ event, data }: StreamedEvent): boolean =>
    event === name && Object.entries(fields).every(([field, value]) => data[field] === value)
