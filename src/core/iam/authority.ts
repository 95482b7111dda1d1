import type { Bound, CallerDefinition, CallerFacts, MemoryBound, PrincipalRecord, PrincipalRef } from './caller.ts'

/**
 * Whose rights the effects of definitions have. What somebody starts acts as the starter, bound to the project; within what
 * narrowed the starter; and within the rights that the author of each definition on the way has at that moment. So no one
 * makes the work of others do what he could not do himself, nor sheds a bound by having something else do it.
 */

/**
 * The authority of what definitions do that work of this authority led to: within the rights of their authors, what narrowed
 * those when they wrote, and the boundaries of agents. A definition whose author is the principal adds nothing.
 */
export function narrowAuthority(record: PrincipalRecord, ...definitions: readonly CallerDefinition[]): PrincipalRecord {
  const added = definitions.flatMap(({ id: of, author, boundary, memory }): Bound[] => [
    ...(author === undefined || (author && isSame(author, record))
      ? []
      : [{ kind: 'author' as const, author: author && refOf(author), of }]),
    // Whose facts it was written for is not whose facts it is used for.
    ...(author ? boundsOf(author).filter(({ kind }) => kind !== 'memory') : []),
    ...(boundary ? [{ kind: 'boundary' as const, ...boundary }] : []),
    ...(memory ? [{ kind: 'memory' as const, ...memory }] : []),
  ])
  return withBounds(record, added)
}

/**
 * The authority of work that acts as its own principal and that another asks for, who fires a trigger or has a run retried:
 * within what bounds the asker, who counts as a starter of it. Authors do not narrow it: asking is what they need the right
 * to, and what others lend by the trigger is theirs to lend.
 */
export function askedForBy(record: PrincipalRecord, asker: PrincipalRecord): PrincipalRecord {
  const asked = withBounds(
    record,
    boundsOf(asker).filter(({ kind }) => kind !== 'author'),
  )
  const [own, other] = [memoryBound(record), memoryBound(asker)]
  // Of two end users it reads the facts of neither.
  const apart = own && other && !other.shared && own.actor_id !== other.actor_id
  const bounds = apart
    ? asked.bounds?.map(bound => (bound.kind === 'memory' ? { ...bound, actor_id: null } : bound))
    : asked.bounds
  return startedAlsoBy(bounds ? { ...asked, bounds } : asked, asker)
}

/** The same authority, with another principal and those beside it as starters: whoever had a part in it may not approve it. */
export function startedAlsoBy(record: PrincipalRecord, other: PrincipalRecord): PrincipalRecord {
  const starters = [...(record.starters ?? [])]
  for (const each of [other, ...(other.starters ?? [])])
    if (![record, ...starters].some(known => isSame(known, each))) starters.push(refOf(each))
  return starters.length === 0 ? record : { ...record, starters }
}

/** An authority within all that narrows another one, whose work it repeats. */
export const withinBoundsOf = (record: PrincipalRecord, other: PrincipalRecord): PrincipalRecord =>
  withBounds(record, boundsOf(other))

/** Whose facts an authority reads; null where nothing says so. */
export function memoryBound({ bounds = [] }: Pick<PrincipalRecord, 'bounds'>): MemoryBound | null {
  const bound = bounds.find(({ kind }) => kind === 'memory')
  return bound?.kind === 'memory' ? { actor_id: bound.actor_id, shared: bound.shared } : null
}

/** Whose facts work reads: those of an end user, or of none, beside those of nobody. Null: everybody's. */
export type Reach = { actor_id: string | null } | null

/** What a turn, and all that it caused, may read; who calls with a key or as a user reads what policies allow. */
export function reachOf(caller: Pick<PrincipalRecord, 'bounds'>): Reach {
  const bound = memoryBound(caller)
  return bound && !bound.shared ? { actor_id: bound.actor_id } : null
}

/** An authority that reads the facts of nobody and of an end user, beside all that bounds it already. */
export const withMemoryOf = (record: PrincipalRecord, memory: MemoryBound): PrincipalRecord =>
  withBounds(record, [{ kind: 'memory', ...memory }])

/** Whether the boundary of an agent narrows an authority. */
export const isBounded = ({ bounds = [] }: PrincipalRecord): boolean => bounds.some(({ kind }) => kind === 'boundary')

/** What narrows a principal, as part of the name of an answer that is kept for it. */
export const boundsName = ({ bounds = [], run }: Pick<CallerFacts, 'bounds' | 'run'>): string =>
  [...bounds.map(nameOf), run?.policy_id ?? ''].join(',')

/** What narrows an authority beside its principal. */
const boundsOf = ({ via, bounds = [] }: PrincipalRecord): readonly Bound[] =>
  via?.type === 'trigger' && via.policy_id !== null ? [{ kind: 'policy', id: via.policy_id }, ...bounds] : bounds

function withBounds(record: PrincipalRecord, added: readonly Bound[]): PrincipalRecord {
  const bounds = new Map((record.bounds ?? []).map(bound => [keyOf(bound), bound]))
  for (const bound of added) bounds.set(keyOf(bound), both(bounds.get(keyOf(bound)), bound))
  return bounds.size === 0 ? record : { ...record, bounds: [...bounds.values()] }
}

const refOf = ({ type, id }: PrincipalRef): PrincipalRef => ({ type, id })

const isSame = (one: PrincipalRef, other: PrincipalRef): boolean => one.type === other.type && one.id === other.id

/** One of each is enough; of whose facts are read there is one. */
const keyOf = (bound: Bound): string => (bound.kind === 'memory' ? bound.kind : nameOf(bound))

/** The later end user counts, and all have to share. */
const both = (known: Bound | undefined, bound: Bound): Bound =>
  known?.kind === 'memory' && bound.kind === 'memory'
    ? { kind: 'memory', actor_id: bound.actor_id ?? known.actor_id, shared: known.shared && bound.shared }
    : (known ?? bound)

/** Equal for bounds that say the same. Unknown authors are told apart by what they wrote. */
function nameOf(bound: Bound): string {
  if (bound.kind === 'policy') return `policy ${bound.id}`
  if (bound.kind === 'grant') return `grant ${bound.id} ${bound.scopes?.join(' ') ?? '*'}`
  if (bound.kind === 'boundary') return `boundary ${bound.agent_id} ${bound.version}`
  if (bound.kind === 'memory') return `memory ${bound.actor_id} ${bound.shared}`
  return bound.author ? `author ${bound.author.type} ${bound.author.id}` : `unknown author of ${bound.of}`
}
