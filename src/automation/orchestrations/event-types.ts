import { eventNames } from '../../core/db/events.ts'
import { plannedNames } from '../../core/iam/catalogue.ts'

/** Names of events that graphs emit. */

export const EVENT_TYPE = /^[a-z0-9_]+(\.[a-z0-9_]+)+$/

/** Names that the platform emits, or will. */
export const platformEvents = (): Set<string> =>
  new Set([...eventNames(), ...plannedNames.all().flatMap(({ events }) => events)])

/** What stands before the first dot of an event's name. */
export const namespaceOf = (name: string): string => name.slice(0, name.indexOf('.'))
