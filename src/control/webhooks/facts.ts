import type { Operation } from '../../core/api/operation.ts'
import { isObject } from '../../core/expressions/evaluate.ts'
import { reachOf } from '../../core/iam/authority.ts'
import type { Caller } from '../../core/iam/caller.ts'

/** What events say of memory. A turn reads the facts of its own end user alone, and no event says whose it tells of. */

type Told = { resource_type?: unknown; data?: unknown }

/** An envelope without the facts in it: of a memory only which one it is, of a turn not what it brought into stores. */
function withoutFacts<T extends Told>(envelope: T): T {
  const { data, resource_type } = envelope
  if (!isObject(data)) return envelope
  if (resource_type === 'memory') {
    const { id, project_id, memory_store_id } = data
    return { ...envelope, data: { id, project_id, memory_store_id } }
  }
  return 'memory_entries' in data ? { ...envelope, data: { ...data, memory_entries: null } } : envelope
}

/**
 * An operation that answers with events, or with what is made of them by `of`: within a turn that reads the facts of one end
 * user, it shows none.
 */
export const factsLeftOut = (
  operation: Operation,
  of: (shown: any, clear: typeof withoutFacts) => object = (event, clear) => clear(event),
): Operation => ({
  ...operation,
  async run(context) {
    const given: any = await operation.run(context)
    const { caller } = context as { caller?: Caller }
    if (!caller || !reachOf(caller)) return given
    return Array.isArray(given.data)
      ? { ...given, data: given.data.map((each: object) => of(each, withoutFacts)) }
      : of(given, withoutFacts)
  },
})
