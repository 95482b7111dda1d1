import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { isIdOf, type Kind, type KindRow, kinds, srn } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import type { ShareInput } from './model.ts'
import { ALL_PROJECTS, RESOURCE_KINDS, type ResourceKind, SHAREABLE } from './terms.ts'

type Creating = Pick<Context<unknown, ShareInput>, 'tx' | 'body' | 'services' | 'allow'> & { project: string }

/**
 * Validates a new share, and holds what it is of until the transaction ends. Who shares something must be allowed to call
 * it.
 * @throws VALIDATION_FAILED, TOOL_NOT_FOUND, AGENT_NOT_FOUND, PUBLIC_SHARES_DISABLED, FORBIDDEN
 */
export async function checkShare({ tx, body, project, services, allow }: Creating) {
  const { resource_kind, resource_id } = resourceOf(body.resource, project)
  const actions = [...new Set(body.actions)]
  const grantable: readonly string[] = SHAREABLE[resource_kind]
  for (const [index, action] of body.actions.entries())
    if (!grantable.includes(action)) wrong(`actions[${index}]`, `must be ${grantable.join(' or ')}`)
  await checkGrantee({ tx, body, project, services, allow })
  const kind = kinds.get(resource_kind)
  const row = isIdOf(kind, resource_id) ? await kind.reference(tx, resource_id, project) : null
  if (!row) return raise(kind.missing, { meta: { id: resource_id } })
  for (const action of actions) allow(action, { kind, row })
  checkEnd(body.expires_at)
  return { resource_kind, resource_id, actions }
}

/** Refuses a time at which a share ends that is over. Raises VALIDATION_FAILED. */
export function checkEnd(expires_at: string | null | undefined): void {
  if (expires_at != null && new Date(expires_at) <= new Date()) wrong('expires_at', 'must be in the future')
}

const wrong = (path: string, message: string): never => raiseInvalid({ code: 'INVALID_VALUE', path, message })

/** What a resource name says: a tool or an agent of the project, one and no pattern. */
function resourceOf(name: string, project: string): { resource_kind: ResourceKind; resource_id: string } {
  const [, , resource_kind = '', resource_id = ''] = name.split(':')
  if (!RESOURCE_KINDS.includes(resource_kind as ResourceKind) || !/^[a-z0-9_]+$/.test(resource_id))
    wrong('resource', 'must be srn:<project>:tool:<id> or srn:<project>:agent:<id>')
  if (name !== srn(project, resource_kind, resource_id)) wrong('resource', 'must be of the project that shares it')
  return { resource_kind: resource_kind as ResourceKind, resource_id }
}

async function checkGrantee({ tx, body: { grantee }, project, services }: Creating): Promise<void> {
  if (grantee === ALL_PROJECTS) {
    if (!services.config.SHARES_ALLOW_PUBLIC) raise('PUBLIC_SHARES_DISABLED')
    return
  }
  if (grantee === project) wrong('grantee', 'must be another project')
  const projects: Kind<KindRow> = kinds.get('project')
  if (!isIdOf(projects, grantee) || !(await projects.find(tx, grantee))) wrong('grantee', 'is no project')
}
