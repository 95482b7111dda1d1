import type { Operation } from '#core/api/operation.ts'
import { isObject } from '#core/base/exact-json.ts'
import { reachOf } from '#core/iam/authority.ts'
import type { Caller } from '#core/iam/caller.ts'

/** Turns may read only memory facts of their end user, and events do not contain the end user of a fact. */

type MemoryEvent = { resource_type?: unknown; data?: unknown }

/** Removes memory facts from an envelope: of a memory only its ids remain, of a turn its memory entries are nulled. */
function redactFacts<T extends MemoryEvent>(envelope: T): T {
  const { data, resource_type } = envelope
  if (!isObject(data)) return envelope
  if (resource_type === 'memory') {
    const { id, project_id, memory_store_id } = data
    return { ...envelope, data: { id, project_id, memory_store_id } }
  }
  return 'memory_entries' in data ? { ...envelope, data: { ...data, memory_entries: null } } : envelope
}

/**
 * Wraps an operation that returns events, or records that contain events: within a turn of one end user it redacts
 * facts.
 * @param redactRecord redacts one record, by default an envelope
 */
export const withFactsRedacted = (
  operation: Operation,
  redactRecord: (record: any, redact: typeof redactFacts) => object = (event, redact) => redact(event),
): Operation => ({
  ...operation,
  async run(context) {
    const result: any = await operation.run(context)
    const { caller } = context as { caller?: Caller }
    if (!caller || !reachOf(caller)) return result
    return Array.isArray(result.data)
      ? { ...result, data: result.data.map((record: object) => redactRecord(record, redactFacts)) }
      : redactRecord(result, redactFacts)
  },
})
