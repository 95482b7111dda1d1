import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { isIdOf, kinds } from '../../core/api/kind.ts'
import { operations } from '../../core/api/operation.ts'
import { type Queryable, sql } from '../../core/db/sql.ts'
import {
  canSeeProject,
  listAllowed,
  listTargetOf,
  passesAdminGate,
  requireBoundProject,
} from '../../core/iam/access.ts'
import { type Caller, principalFacts } from '../../core/iam/caller.ts'
import { type ActionEntry, actionCatalogue } from '../../core/iam/catalogue.ts'
import { rowFilter } from '../../core/iam/row-filter.ts'

export const OwnPermission = z
  .object({
    action: z.string(),
    allowed: z.enum(['all', 'some', 'none']).describe('`some`: it depends on the resource'),
  })
  .meta({ id: 'OwnPermission' })

// The filter is only asked whether it needs the row at all, never sent.
const row = {
  project: sql.fragment`project_id`,
  id: sql.fragment`id`,
  path: sql.fragment`path`,
  parent: sql.fragment`parent`,
  tags: sql.fragment`tags`,
}

function allowance(caller: Caller, entry: ActionEntry, projectId: string | null): 'all' | 'some' | 'none' {
  const { action, gate, resource_type } = entry
  if (gate === 'any') return 'all'
  if (gate === 'admin') return passesAdminGate(caller, action, null) ? 'all' : 'none'
  if (gate === 'owner') return passesAdminGate(caller, action, null) ? 'all' : 'some'
  const listed = listTargetOf(kinds.all().find(({ name }) => name === resource_type) ?? null)
  const type = resource_type ?? '*'
  if (projectId !== null && !listAllowed(caller, action, { ...listed, type }, projectId)) return 'none'
  const filter = rowFilter(
    caller.layers,
    { ...listed, action, type, facts: principalFacts(caller), projectId: projectId ?? undefined },
    row,
  )
  return filter === true ? 'all' : filter === false ? 'none' : 'some'
}

/**
 * What the caller may do, over the whole catalogue, in one project or anywhere. A project is named like in a list:
 * raises API_KEY_PROJECT_SCOPE, FORBIDDEN, and RESOURCE_NOT_FOUND to those whose policies reach the missing project.
 */
export async function ownPermissions(
  db: Queryable,
  caller: Caller,
  named: string | undefined,
): Promise<z.infer<typeof OwnPermission>[]> {
  const projectId = named ?? caller.project_id
  if (named !== undefined) {
    requireBoundProject(caller, named)
    if (!canSeeProject(caller, named)) raise('FORBIDDEN')
    const projects = kinds.get('project')
    const found = isIdOf(projects, named) ? await projects.find(db, named) : null
    if (!found) raise('RESOURCE_NOT_FOUND', { meta: { id: named } })
  }
  return actionCatalogue(operations.all())
    .flatMap(({ actions }) => actions)
    .map(entry => ({ action: entry.action, allowed: allowance(caller, entry, projectId) }))
}
