import { raise } from '#core/base/errors.ts'
import { type Fragment, sql } from '#core/db/sql.ts'
import { type Reach, reachOf } from '#core/iam/authority.ts'
import type { CallerFacts } from '#core/iam/caller.ts'

/** Returns the owner column of a row: the end user, or '' without one. */
export const ownerKeyOf = (actorId: string | null): string => actorId ?? ''

/** Returns the owner keys within a reach: no end user, and the end user of the reach. */
const ownersOf = ({ actor_id }: NonNullable<Reach>): readonly string[] => ['', ...(actor_id === null ? [] : [actor_id])]

/** Returns the condition that the owner of a row is within all reaches; null if they do not restrict it. */
export function withinReach(owner: Fragment, ...reaches: readonly Reach[]): Fragment | null {
  const owners = reaches.filter(reach => reach !== null).map(ownersOf)
  if (owners.length === 0) return null
  const common = owners[0].filter(id => owners.every(each => each.includes(id)))
  return sql.fragment`${owner} = any(${sql.array(common, 'text')})`
}

export const canReachMemory = (reach: Reach, { actor_id }: { actor_id: string | null }): boolean =>
  reach === null || ownersOf(reach).includes(ownerKeyOf(actor_id))

/** Refuses callers bound to an end user, who may not change which facts are read. Raises FORBIDDEN. */
export function refuseEndUserBound(caller: Pick<CallerFacts, 'bounds'>): void {
  if (reachOf(caller)) raise('FORBIDDEN', { message: 'Work bound to one end user cannot change which facts are read' })
}
