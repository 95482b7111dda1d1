import { raise } from '../../core/api/errors.ts'
import type { Kind } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import { idStatement } from '../../core/db/sql.ts'

/**
 * The project in which what a definition names is looked up, while it is checked and not written; null without one.
 * @param asked what the caller has to be allowed there
 * @throws FORBIDDEN, RESOURCE_NOT_FOUND
 */
export async function lookupProject(
  { allow, caller, db }: Pick<Context, 'allow' | 'caller' | 'db'>,
  asked: { kind: Kind<any, any>; action: string },
  named: string | null | undefined,
): Promise<string | null> {
  const project = named ?? caller.project_id
  if (project === null) return null
  allow(asked.action, { kind: asked.kind, project_id: project })
  const exists =
    caller.project_id !== null || (await db.exists(idStatement`select id from projects where id = ${project}`))
  return exists ? project : raise('RESOURCE_NOT_FOUND', { meta: { id: project } })
}
