import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { type Queryable, sql } from '../../core/db/sql.ts'
import type { Caller } from '../../core/iam/caller.ts'
import type { Boundary } from '../../identity/boundaries.ts'

const policy = sql.type(z.object({ boundary_policy: z.unknown() }))

/** The boundary policy of a version of an agent; null for none. By the unique index of agent and version. */
export async function boundaryPolicyOf(db: Queryable, { agent_id, version }: Boundary): Promise<unknown> {
  const found = await db.maybeOne(policy`
    select config -> 'boundary_policy' as boundary_policy from agent_versions
    where agent_id = ${agent_id} and version = ${version}`)
  return found?.boundary_policy ?? null
}

/** Work within the boundary of an agent changes nothing about that agent, whatever it may change. Raises FORBIDDEN. */
export function refuseBoundedCaller({ bounds = [] }: Caller, { agent_id }: Record<string, string>): void {
  if (bounds.some(bound => bound.kind === 'boundary' && bound.agent_id === agent_id))
    raise('FORBIDDEN', { message: 'Work within the boundary of an agent may not change the agent' })
}
