import { LRUCache } from 'lru-cache'
import { extensionPoint } from '#core/base/declarations.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { Bound } from '#core/iam/caller.ts'
import type { Layer } from '#core/iam/decide.ts'
import { type CompiledDocument, compileDocument } from '#core/iam/policy.ts'

/** Boundary policies of agents, which restrict everything that their turns cause, at any depth. */

export type Boundary = Omit<Extract<Bound, { kind: 'boundary' }>, 'kind'>

/** Loads the boundary policy of an agent version; null if it has none. Registered by the agents module. */
export const boundaryPolicies = extensionPoint<(db: Queryable, boundary: Boundary) => Promise<unknown>>({
  name: 'boundary policies of agents',
  folder: 'identity/principals',
  description: 'Loads the boundary policy of an agent version, which restricts what its turns cause',
})

// The configuration of an agent version is immutable.
const compiledOf = processSingleton(() => new LRUCache<string, CompiledDocument>({ max: 1000 }))

const cacheKey = ({ agent_id, version }: Boundary): string => `${agent_id} ${version}`

/** Compiles and caches a boundary policy that the caller has already loaded. */
export function keepBoundary(services: Services, boundary: Boundary, document: unknown): CompiledDocument {
  const compiled = compileDocument(document)
  compiledOf(services).set(cacheKey(boundary), compiled)
  return compiled
}

export const keepsBoundary = (services: Services, boundary: Boundary): boolean =>
  compiledOf(services).has(cacheKey(boundary))

/** Returns the boundary policy as a layer. A missing or unreadable policy allows nothing. */
export async function boundaryLayer(services: Services, boundary: Boundary): Promise<Layer> {
  const known = compiledOf(services).get(cacheKey(boundary))
  if (known) return { kind: 'agent', documents: [known] }
  const document = await boundaryPolicies.only()?.(services.pool, boundary)
  return { kind: 'agent', documents: document == null ? [] : [keepBoundary(services, boundary, document)] }
}
