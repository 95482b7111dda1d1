import { systemClock } from '../base/clock.ts'
import { declarations } from '../base/declarations.ts'
import { newId } from '../base/ids.ts'
import { traceContext } from '../base/telemetry.ts'
import { currentTriggerChain } from '../db/trigger-chain.ts'

/** Prefix of IDs of events, whose kind is declared by a later area. */
export const EVENT_PREFIX = 'evt'

/** A kind or another entity that emits events. Events are named `<plural>.<verb>` unless `eventNames` overrides it. */
export type EventSource<Row extends EventRow = EventRow, Event extends string = string> = {
  /** Singular, in snake_case; also the type segment of resource names. */
  name: string
  plural: string
  events: readonly Event[]
  eventNames: Partial<Record<Event, string>>
  /** Aliases that subscription patterns may use, by verb; the envelope always contains the canonical name. */
  eventAliases: Partial<Record<Event, readonly string[]>>
  eventNotes?: string
  /** Returns the API representation of a row. */
  present(row: Row): object
}

export type EventRow = { id: string; project_id: string | null }

/** An event that this deployment can emit. */
export type EventType = {
  name: string
  resource_type: string
  aliases: readonly string[]
  notes: string | null
}

export const eventTypes = declarations<EventType>('event', ({ name }) => name)

function nameOf(source: EventSource<any>, verb: string): string {
  if (!source.events.includes(verb)) throw new Error(`${source.plural} has no event ${verb}`)
  return source.eventNames[verb] ?? `${source.plural}.${verb}`
}

export const eventTypesOf = (source: EventSource<any>): EventType[] =>
  source.events.map(verb => ({
    name: nameOf(source, verb),
    resource_type: source.name,
    aliases: source.eventAliases[verb] ?? [],
    notes: source.eventNotes ?? null,
  }))

/** Declares an event source that is not a kind. */
export const eventSource = <const Event extends string>(declaration: {
  name: string
  plural: string
  events: readonly Event[]
  eventAliases?: EventSource<EventRow, Event>['eventAliases']
  eventNotes?: string
}): EventSource<EventRow, Event> => ({ eventNames: {}, eventAliases: {}, ...declaration, present: row => row })

/** Returns the aliases of an event. */
export const eventAliases = (name: string): readonly string[] => eventTypes.find(name)?.aliases ?? []

/** Returns the names and aliases of all events. */
export const eventNames = (): string[] => eventTypes.all().flatMap(({ name, aliases }) => [name, ...aliases])

const PATTERN = /^(\*|[a-z0-9_]+(\.[a-z0-9_]+)*(\.\*)?)$/

/** Whether a text is a valid subscription pattern. */
export const isEventPattern = (pattern: string): boolean => pattern.length <= 128 && PATTERN.test(pattern)

const matches = (pattern: string, name: string): boolean =>
  pattern === '*' || pattern === name || (pattern.endsWith('.*') && name.startsWith(pattern.slice(0, -1)))

/** Whether a pattern matches the name of an event or one of its aliases. */
export const patternMatches = (pattern: string, name: string): boolean =>
  matches(pattern, name) || eventAliases(name).some(alias => matches(pattern, alias))

/** An event as stored; `envelope` is the exact text sent by every delivery. */
export type StoredEvent = {
  id: string
  project_id: string
  name: string
  resource_type: string
  resource_id: string
  envelope: string
  created_at: string
  /** Trigger chain that caused the event, oldest first; not part of the envelope. */
  causation?: readonly string[]
  /** Context of the span that caused the event; not part of the envelope. */
  trace_context?: string
}

/** Data of an event in place of its row (`data`) or in addition to it (`extra`), and a preassigned `id`. */
export type EventData = { extra?: object; data?: object; id?: string }

/**
 * Builds an event. Its data is the API representation of the row, or `data` instead, plus `extra`. If `maxBytes`
 * (EVENT_DATA_MAX_BYTES) is above 0, larger data is reduced to its scalar fields.
 */
export function makeEvent<Row extends EventRow>(
  source: EventSource<Row, any>,
  verb: string,
  row: Row,
  overrides: EventData,
  maxBytes: number,
): StoredEvent {
  const id = overrides.id ?? newId(EVENT_PREFIX)
  const name = nameOf(source, verb)
  const timestamp = systemClock.now().toISOString()
  let data: object = { ...(overrides.data ?? source.present(row)), ...overrides.extra }
  if (maxBytes > 0 && Buffer.byteLength(JSON.stringify(data)) > maxBytes) {
    data = {
      ...Object.fromEntries(Object.entries(data).filter(([, value]) => value === null || typeof value !== 'object')),
      truncated: true,
    }
  }
  const project_id = row.project_id as string
  const resource = { resource_type: source.name, resource_id: row.id }
  const envelope = JSON.stringify({ id, event: name, project_id, ...resource, data, timestamp })
  const chain = currentTriggerChain()
  const causation = chain.length > 0 ? chain : undefined
  return {
    id,
    project_id,
    name,
    ...resource,
    envelope,
    created_at: timestamp,
    causation,
    trace_context: traceContext() ?? undefined,
  }
}
