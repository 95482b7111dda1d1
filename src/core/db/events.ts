import { newId } from '../api/ids.ts'
import { declarations } from '../declarations.ts'
import { currentTriggerChain } from './trigger-chain.ts'

/**
 * What emits events: a kind, or another thing that has an id and a project. Events are named `<plural>.<verb>` unless
 * `eventNames` says otherwise.
 */
export type EventSource<Row extends EventRow = EventRow, Event extends string = string> = {
  /** Singular snake_case; also the type segment of resource names. */
  name: string
  plural: string
  events: readonly Event[]
  eventNames: Partial<Record<Event, string>>
  /** Older spellings that a subscription may use, by verb; the envelope always carries the canonical name. */
  eventAliases: Partial<Record<Event, readonly string[]>>
  eventNotes?: string
  /** The record as the wire shows it. */
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
  if (!source.events.includes(verb)) throw new Error(`${source.plural} emit no event ${verb}`)
  return source.eventNames[verb] ?? `${source.plural}.${verb}`
}

export const eventTypesOf = (source: EventSource<any>): EventType[] =>
  source.events.map(verb => ({
    name: nameOf(source, verb),
    resource_type: source.name,
    aliases: source.eventAliases[verb] ?? [],
    notes: source.eventNotes ?? null,
  }))

/** Declares what emits events without being a kind. */
export const eventSource = <const Event extends string>(declaration: {
  name: string
  plural: string
  events: readonly Event[]
  eventAliases?: EventSource<EventRow, Event>['eventAliases']
  eventNotes?: string
}): EventSource<EventRow, Event> => ({ eventNames: {}, eventAliases: {}, ...declaration, present: row => row })

/** Older spellings of an event. */
export const eventAliases = (name: string): readonly string[] => eventTypes.find(name)?.aliases ?? []

/** Every name and older spelling. */
export const eventNames = (): string[] => eventTypes.all().flatMap(({ name, aliases }) => [name, ...aliases])

const PATTERN = /^(\*|[a-z0-9_]+(\.[a-z0-9_]+)*(\.\*)?)$/

/** Syntax of a subscription pattern. */
export const isEventPattern = (pattern: string): boolean => pattern.length <= 128 && PATTERN.test(pattern)

const matches = (pattern: string, name: string): boolean =>
  pattern === '*' || pattern === name || (pattern.endsWith('.*') && name.startsWith(pattern.slice(0, -1)))

/** A pattern matches an event when it matches its name or one of its aliases. */
export const patternMatches = (pattern: string, name: string): boolean =>
  matches(pattern, name) || eventAliases(name).some(alias => matches(pattern, alias))

/** An event as it is made: `envelope` is the exact text that every delivery sends. */
export type StoredEvent = {
  id: string
  project_id: string
  name: string
  resource_type: string
  resource_id: string
  envelope: string
  created_at: string
  /** The triggers that led to it, oldest first; no part of the envelope. */
  causation?: readonly string[]
}

/** What an event says beside or in place of the record of its row; `id` is one that its maker has drawn. */
export type EventData = { extra?: object; data?: object; id?: string }

/**
 * Builds an event. Its data is the resource as its GET returns it, or `data` in place of that; `extra` are facts beside.
 * `maxBytes` > 0 cuts larger data to its scalar fields (EVENT_DATA_MAX_BYTES).
 */
export function makeEvent<Row extends EventRow>(
  source: EventSource<Row, any>,
  verb: string,
  row: Row,
  more: EventData,
  maxBytes: number,
): StoredEvent {
  const id = more.id ?? newId('evt')
  const name = nameOf(source, verb)
  const timestamp = new Date().toISOString()
  let data: object = { ...(more.data ?? source.present(row)), ...more.extra }
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
  return { id, project_id, name, ...resource, envelope, created_at: timestamp, causation }
}
