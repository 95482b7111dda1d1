import { raise } from '../core/api/errors.ts'
import { type Fragment, sql } from '../core/db/sql.ts'
import { type Reach, reachOf } from '../core/iam/authority.ts'
import type { CallerFacts } from '../core/iam/caller.ts'

/** Whose a row of knowledge is, as the database knows it. */
export const ownerKeyOf = (actorId: string | null): string => actorId ?? ''

/** Whose rows somebody sees who sees those of an end user, or of none. */
const ownersOf = ({ actor_id }: NonNullable<Reach>): readonly string[] => ['', ...(actor_id === null ? [] : [actor_id])]

/** The condition that all of some reaches hold over the owner of a row; null leaves all. */
export function withinReach(owner: Fragment, ...reaches: readonly Reach[]): Fragment | null {
  const all = reaches.filter(reach => reach !== null).map(ownersOf)
  if (all.length === 0) return null
  const owners = all[0].filter(id => all.every(others => others.includes(id)))
  return sql.fragment`${owner} = any(${sql.array(owners, 'text')})`
}

export const canReachMemory = (reach: Reach, { actor_id }: { actor_id: string | null }): boolean =>
  reach === null || ownersOf(reach).includes(ownerKeyOf(actor_id))

/** Work for one end user does not change whose facts are read, its own included. Raises FORBIDDEN. */
export function refuseForOne(caller: Pick<CallerFacts, 'bounds'>): void {
  if (reachOf(caller))
    raise('FORBIDDEN', { message: 'Work that reads the facts of one end user may not change whose facts are read' })
}
