import { orchestrationKind } from '#automation/orchestrations/definition/model.ts'
import { canSeeProject } from '#core/api/access.ts'
import { isIdOf } from '#core/api/kind.ts'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { MountExchange } from '#core/http/mounts.ts'
import type { Caller } from '#core/iam/caller.ts'
import type { A2aFace } from '#execution/agents/a2a-face.ts'
import { agentKind, findAgent } from '#execution/agents/model.ts'
import { findGrantingShares } from '#execution/grants/grants.ts'
import type { MountRequest } from '../call.ts'

/** An agent or an orchestration that is served to clients of the protocol. */
export type Target = {
  kind: 'agent' | 'orchestration'
  id: string
  /** Project of the definition. */
  owner_project_id: string
  name: string
  description: string
  version: number
  face: A2aFace
}

/** A request about a target, on behalf of a project: the project of the credential, else of the target. */
export type A2aRequest = MountRequest & OpenTarget

/** Returns the target with an ID; null unless it is served. */
export async function findTarget(db: Queryable, id: string): Promise<Target | null> {
  const kind = isIdOf(agentKind, id) ? 'agent' : isIdOf(orchestrationKind, id) ? 'orchestration' : null
  if (kind === null) return null
  const row = kind === 'agent' ? await findAgent(db, id) : await orchestrationKind.find(db, id)
  const face = row?.a2a
  if (!row || !face?.enabled) return null
  const { project_id: owner_project_id, version } = row
  const description = face.description ?? row.description ?? ''
  return { kind, id, owner_project_id: owner_project_id as string, name: row.name ?? id, description, version, face }
}

export const targetNotFound = (id: string): never => raise('RESOURCE_NOT_FOUND', { meta: { id: id.slice(0, 255) } })

/** A target that a caller may see, and the project in which the caller uses it. */
export type OpenTarget = { target: Target; project_id: string }

/**
 * Finds a target for a caller, who is no end user, and counts the request of a key. A shared agent is also served to the
 * projects that it is shared with.
 * @throws FORBIDDEN, QUOTA_EXCEEDED, RESOURCE_NOT_FOUND for a target that the caller may not see
 */
export async function openTarget(
  services: Services,
  { request }: Pick<MountExchange, 'request'>,
  caller: Caller,
  id: string,
): Promise<OpenTarget> {
  refuseEndUser(caller)
  const target = (await findTarget(services.pool, id)) ?? targetNotFound(id)
  const project_id = await projectOf(services.pool, caller, target)
  await request.count?.in(caller, project_id)
  return { target, project_id }
}

async function projectOf(db: Queryable, caller: Caller, { id, kind, owner_project_id }: Target): Promise<string> {
  const project = caller.project_id ?? owner_project_id
  const isVisible =
    project === owner_project_id
      ? canSeeProject(caller, project)
      : kind === 'agent' && (await findGrantingShares(db, 'agent', project, [id])).has(id)
  return isVisible ? project : targetNotFound(id)
}

/** @throws FORBIDDEN for the token of an end user */
function refuseEndUser({ end_user }: Caller): void {
  if (end_user) raise('FORBIDDEN', { message: 'Tokens of end users are not accepted here' })
}
