import type { Bound, CallerDefinition, CallerFacts, MemoryBound, PrincipalRecord, PrincipalRef } from './caller.ts'

/**
 * Authority of work started through definitions. Work acts as its starter, bound to the project and to the bounds of the
 * starter, and is limited to the current permissions of the author of each definition involved. So a definition cannot make
 * the work of others exceed its author's permissions, and delegation cannot remove a bound.
 */

/**
 * Returns an authority narrowed by definitions: by the permissions and bounds of their authors, and by agent boundaries. A
 * definition whose author is the principal adds no bound.
 */
export function narrowAuthority(record: PrincipalRecord, ...definitions: readonly CallerDefinition[]): PrincipalRecord {
  const added = definitions.flatMap(({ id: of, author, boundary, memory }): Bound[] => [
    ...(author === undefined || (author && isSame(author, record))
      ? []
      : [{ kind: 'author' as const, author: author && refOf(author), of }]),
    // The end user of the author's write is unrelated to the end user of this use.
    ...(author ? boundsOf(author).filter(({ kind }) => kind !== 'memory') : []),
    ...(boundary ? [{ kind: 'boundary' as const, ...boundary }] : []),
    ...(memory ? [{ kind: 'memory' as const, ...memory }] : []),
  ])
  return withBounds(record, added)
}

/**
 * Returns the authority of work that acts as its own principal but is requested by another, who fires a trigger or retries a
 * run: narrowed by the bounds of the requester, who becomes a starter. Author bounds of the requester do not apply: its
 * author needs only the permission to make the request.
 */
export function narrowToRequester(record: PrincipalRecord, requester: PrincipalRecord): PrincipalRecord {
  const narrowed = withBounds(
    record,
    boundsOf(requester).filter(({ kind }) => kind !== 'author'),
  )
  const [own, other] = [memoryBound(record), memoryBound(requester)]
  // With two different end users, the facts of neither are readable.
  const isConflict = own && other && !other.shared && own.actor_id !== other.actor_id
  const bounds = isConflict
    ? narrowed.bounds?.map(bound => (bound.kind === 'memory' ? { ...bound, actor_id: null } : bound))
    : narrowed.bounds
  return addStarter(bounds ? { ...narrowed, bounds } : narrowed, requester)
}

/** Adds a principal and its starters as starters of an authority, which excludes them from approving its work. */
export function addStarter(record: PrincipalRecord, other: PrincipalRecord): PrincipalRecord {
  const starters = [...(record.starters ?? [])]
  for (const each of [other, ...(other.starters ?? [])])
    if (![record, ...starters].some(starter => isSame(starter, each))) starters.push(refOf(each))
  return starters.length === 0 ? record : { ...record, starters }
}

/** Returns an authority narrowed by all bounds of another one, whose work it repeats. */
export const addBoundsOf = (record: PrincipalRecord, other: PrincipalRecord): PrincipalRecord =>
  withBounds(record, boundsOf(other))

/** Returns the memory bound of an authority, or null. */
export function memoryBound({ bounds = [] }: Pick<PrincipalRecord, 'bounds'>): MemoryBound | null {
  const bound = bounds.find(({ kind }) => kind === 'memory')
  return bound?.kind === 'memory' ? { actor_id: bound.actor_id, shared: bound.shared } : null
}

/** The end user whose facts work may read in addition to facts without an end user. Null: facts of all end users. */
export type Reach = { actor_id: string | null } | null

/** Returns the reach of a turn and the work it causes; null for calls by key or user, which only policies limit. */
export function reachOf(caller: Pick<PrincipalRecord, 'bounds'>): Reach {
  const bound = memoryBound(caller)
  return bound && !bound.shared ? { actor_id: bound.actor_id } : null
}

/** Adds a memory bound to an authority. */
export const withMemoryOf = (record: PrincipalRecord, memory: MemoryBound): PrincipalRecord =>
  withBounds(record, [{ kind: 'memory', ...memory }])

/** Whether an agent boundary narrows an authority. */
export const isBounded = ({ bounds = [] }: PrincipalRecord): boolean => bounds.some(({ kind }) => kind === 'boundary')

/** Returns the bounds of a caller as part of a cache key. */
export const boundsKey = ({ bounds = [], run }: Pick<CallerFacts, 'bounds' | 'run'>): string =>
  [...bounds.map(nameOf), run?.policy_id ?? ''].join(',')

/** Returns the bounds of an authority, including its trigger policy. */
const boundsOf = ({ via, bounds = [] }: PrincipalRecord): readonly Bound[] =>
  via?.type === 'trigger' && via.policy_id !== null ? [{ kind: 'policy', id: via.policy_id }, ...bounds] : bounds

function withBounds(record: PrincipalRecord, added: readonly Bound[]): PrincipalRecord {
  const bounds = new Map((record.bounds ?? []).map(bound => [keyOf(bound), bound]))
  for (const bound of added) bounds.set(keyOf(bound), mergeBound(bounds.get(keyOf(bound)), bound))
  return bounds.size === 0 ? record : { ...record, bounds: [...bounds.values()] }
}

const refOf = ({ type, id }: PrincipalRef): PrincipalRef => ({ type, id })

const isSame = (one: PrincipalRef, other: PrincipalRef): boolean => one.type === other.type && one.id === other.id

/** Returns the deduplication key of a bound; an authority has a single memory bound. */
const keyOf = (bound: Bound): string => (bound.kind === 'memory' ? bound.kind : nameOf(bound))

/** Merges two bounds. For memory, the later end user applies, and `shared` only if both are shared. */
const mergeBound = (existing: Bound | undefined, bound: Bound): Bound =>
  existing?.kind === 'memory' && bound.kind === 'memory'
    ? { kind: 'memory', actor_id: bound.actor_id ?? existing.actor_id, shared: existing.shared && bound.shared }
    : (existing ?? bound)

/** Returns a text that is equal for equal bounds. Unknown authors are distinguished by definition. */
function nameOf(bound: Bound): string {
  if (bound.kind === 'policy') return `policy ${bound.id}`
  if (bound.kind === 'grant') return `grant ${bound.id} ${bound.scopes?.join(' ') ?? '*'}`
  if (bound.kind === 'boundary') return `boundary ${bound.agent_id} ${bound.version}`
  if (bound.kind === 'memory') return `memory ${bound.actor_id} ${bound.shared}`
  return bound.author ? `author ${bound.author.type} ${bound.author.id}` : `unknown author of ${bound.of}`
}
