import { LRUCache } from 'lru-cache'
import type { Queryable } from '../core/db/sql.ts'
import { extensionPoint } from '../core/declarations.ts'
import type { Bound } from '../core/iam/caller.ts'
import type { Layer } from '../core/iam/decide.ts'
import { type CompiledDocument, compileDocument } from '../core/iam/policy.ts'
import { processSingleton } from '../core/process/process-singleton.ts'
import type { Services } from '../core/process/services.ts'

/** Boundary policies of agents, which narrow whatever their turns cause, however far down. */

export type Boundary = Omit<Extract<Bound, { kind: 'boundary' }>, 'kind'>

/** Reads the boundary policy of a version of an agent; null for none. Contributed by the later area of agents. */
export const boundaryPolicies =
  extensionPoint<(db: Queryable, boundary: Boundary) => Promise<unknown>>('boundary policies of agents')

// The configuration of a version never changes.
const compiledOf = processSingleton(() => new LRUCache<string, CompiledDocument>({ max: 1000 }))

const nameOf = ({ agent_id, version }: Boundary): string => `${agent_id} ${version}`

/** Keeps a boundary policy that the caller has read anyway. */
export function keepBoundary(services: Services, boundary: Boundary, document: unknown): CompiledDocument {
  const compiled = compileDocument(document)
  compiledOf(services).set(nameOf(boundary), compiled)
  return compiled
}

export const keepsBoundary = (services: Services, boundary: Boundary): boolean =>
  compiledOf(services).has(nameOf(boundary))

/** A boundary policy as a layer. One that is gone with its agent, or cannot be read, allows nothing. */
export async function boundaryLayer(services: Services, boundary: Boundary): Promise<Layer> {
  const known = compiledOf(services).get(nameOf(boundary))
  if (known) return { kind: 'agent', documents: [known] }
  const document = await boundaryPolicies.only()?.(services.pool, boundary)
  return { kind: 'agent', documents: document == null ? [] : [keepBoundary(services, boundary, document)] }
}
