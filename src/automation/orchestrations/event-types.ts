import { eventNames } from '../../core/db/events.ts'
import { plannedNames } from '../../core/iam/catalogue.ts'

export const EVENT_TYPE = /^[a-z0-9_]+(\.[a-z0-9_]+)+$/

/** Returns the current and planned event names of the platform. */
export const platformEvents = (): Set<string> =>
  new Set([...eventNames(), ...plannedNames.all().flatMap(({ events }) => events)])

/** Returns the part of an event name before the first dot. */
export const namespaceOf = (name: string): string => name.slice(0, name.indexOf('.'))
