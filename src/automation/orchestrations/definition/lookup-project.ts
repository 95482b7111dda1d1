import type { Kind } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { idStatement } from '#core/db/sql.ts'

/**
 * Returns the project in which a validation looks up references; null without one.
 * @param required permission that the caller needs in the project
 * @throws FORBIDDEN, RESOURCE_NOT_FOUND
 */
export async function lookupProject(
  { allow, caller, db }: Pick<Context, 'allow' | 'caller' | 'db'>,
  required: { kind: Kind<any, any>; action: string },
  projectId: string | null | undefined,
): Promise<string | null> {
  const project = projectId ?? caller.project_id
  if (project === null) return null
  allow(required.action, { kind: required.kind, project_id: project })
  const exists =
    caller.project_id !== null || (await db.exists(idStatement`select id from projects where id = ${project}`))
  return exists ? project : raise('RESOURCE_NOT_FOUND', { meta: { id: project } })
}
