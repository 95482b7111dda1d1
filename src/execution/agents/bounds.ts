import { z } from 'zod'
import { raise } from '#core/base/errors.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import type { Boundary } from '#identity/principals/boundaries.ts'

const boundaryRow = sql.type(z.object({ boundary_policy: z.unknown() }))

/** Returns the boundary policy of an agent version, or null. Uses the unique index on agent and version. */
export async function findBoundaryPolicy(db: Queryable, { agent_id, version }: Boundary): Promise<unknown> {
  const found = await db.maybeOne(boundaryRow`
    select config -> 'boundary_policy' as boundary_policy from agent_versions
    where agent_id = ${agent_id} and version = ${version}`)
  return found?.boundary_policy ?? null
}

/** Raises FORBIDDEN when the caller works within the boundary of this agent, whatever its other permissions. */
export function refuseBoundedCaller({ bounds = [] }: Caller, { agent_id }: Record<string, string>): void {
  if (bounds.some(bound => bound.kind === 'boundary' && bound.agent_id === agent_id))
    raise('FORBIDDEN', { message: 'Work within the boundary of an agent cannot change that agent' })
}
