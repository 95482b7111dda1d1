import { eventNames } from '#core/writes/events.ts'

export const EVENT_TYPE = /^[a-z0-9_]+(\.[a-z0-9_]+)+$/

/** Returns the event names of the platform. */
export const platformEvents = (): Set<string> => new Set(eventNames())

/** Returns the part of an event name before the first dot. */
export const namespaceOf = (name: string): string => name.slice(0, name.indexOf('.'))
