import { z } from 'zod'
import { canSeeProject, listAllowed, listTargetOf, passesAdminGate, requireBoundProject } from '#core/api/access.ts'
import { type ActionEntry, actionCatalogue } from '#core/api/catalogue.ts'
import { isIdOf, kinds } from '#core/api/kind.ts'
import { operations } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import { type Caller, principalFacts } from '#core/iam/caller.ts'
import { rowFilter } from '#core/iam/row-filter.ts'

export const OwnPermission = z
  .object({
    action: z.string(),
    allowed: z
      .enum(['all', 'some', 'none'])
      .describe('Scope of the permission: all – all resources; some – depends on the resource; none – no resources'),
  })
  .meta({ id: 'OwnPermission' })

// The filter is only built to find out whether it depends on the row; it is never executed.
const rowColumns = {
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
  const listTarget = listTargetOf(kinds.all().find(({ name }) => name === resource_type) ?? null)
  const type = resource_type ?? '*'
  if (projectId !== null && !listAllowed(caller, action, { ...listTarget, type }, projectId)) return 'none'
  const filter = rowFilter(
    caller.layers,
    { ...listTarget, action, type, facts: principalFacts(caller), projectId: projectId ?? undefined },
    rowColumns,
  )
  return filter === true ? 'all' : filter === false ? 'none' : 'some'
}

/**
 * Returns the caller's permissions for all actions, in one project or anywhere.
 * @throws API_KEY_PROJECT_SCOPE, FORBIDDEN, and RESOURCE_NOT_FOUND for a missing project that the caller's policies
 * allow
 */
export async function permissionsOfUser(
  db: Queryable,
  caller: Caller,
  requested: string | undefined,
): Promise<z.infer<typeof OwnPermission>[]> {
  const projectId = requested ?? caller.project_id
  if (requested !== undefined) {
    requireBoundProject(caller, requested)
    if (!canSeeProject(caller, requested)) raise('FORBIDDEN')
    const projects = kinds.get('project')
    const found = isIdOf(projects, requested) ? await projects.find(db, requested) : null
    if (!found) raise('RESOURCE_NOT_FOUND', { meta: { id: requested } })
  }
  return actionCatalogue(operations.all())
    .flatMap(({ actions }) => actions)
    .map(entry => ({ action: entry.action, allowed: allowance(caller, entry, projectId) }))
}
