import {
  canSeeProject,
  couldEverAllow,
  grantsAllow,
  isAllowed,
  listAllowed,
  listAllowedAnywhere,
  listTargetOf,
  mayReach,
  type PolicyTarget,
  passesAdminGate,
  raiseForbidden,
  requirePermitted,
  targetName,
} from '../api/access.ts'
import { isIdOf, type Kind, type KindRow } from '../api/kind.ts'
import type { ParentRoute } from '../api/operation.ts'
import { raise, raiseInvalid } from '../base/errors.ts'
import { isObject } from '../base/exact-json.ts'
import type { Caller } from '../iam/caller.ts'
import { requireStorable } from './input.ts'
import type { Invocation } from './invocation.ts'
import {
  enterProject,
  findItem,
  itemId,
  loadItem,
  projectExists,
  requestedProject,
  requireCredentialProject,
} from './resolve.ts'

/** Step: authorizes the caller, and loads the item or project. Raises FORBIDDEN, or the `notFound` code of a hidden item. */
export async function authorize(inv: Invocation, caller: Caller): Promise<void> {
  const { operation, audit } = inv
  requireCredentialProject(inv, caller)
  if (!mayReach(caller, operation)) refuseDefinition(inv, caller)
  if (operation.gate === 'any') {
    inv.decided = operation.action !== null
    if (operation.shape === 'item') await loadItem(inv, caller)
    return
  }
  inv.decided = true
  const action = operation.action as string
  const kind = operation.kind as Kind
  if (operation.gate === 'owner') {
    audit.resource_srn = operation.kind ? targetName({ kind, project_id: caller.project_id }) : null
    // Ownership by the user does not extend the consent of an OAuth token.
    if (!grantsAllow(caller, action)) raiseForbidden(caller, action)
    await operation.admit?.(caller, inv.call.params, inv.services)
    if (operation.shape === 'item') await loadItem(inv, caller)
    const verdict = operation.decide?.(caller, inv.resource, inv.call.surface) ?? 'allow'
    if (verdict !== 'allow') raiseForbidden(null, action)
    return
  }
  await operation.admit?.(caller, inv.call.params, inv.services)
  if (operation.gate === 'admin') return authorizeAdmin(inv, caller, action, operation.kind)
  if (operation.shape === 'item') return authorizeItem(inv, caller, action, kind)
  if (operation.shape === 'create') return authorizeCreate(inv, caller, action, kind)
  return authorizeList(inv, caller, action, operation.kind)
}

/**
 * Refuses a definition. Gates other than `policy` check only the user who started the work: neither the authors of the
 * definitions nor the project.
 */
function refuseDefinition(inv: Invocation, { project_id }: Caller): never {
  const { action, kind, param } = inv.operation
  inv.decided = true
  inv.audit.project_id = project_id
  if (kind && param) inv.audit.resource_public_id = itemId(inv)
  inv.audit.resource_srn = kind && targetName({ kind, project_id })
  return raise('FORBIDDEN', {
    message: 'Definitions and other background work cannot call this operation',
    meta: action === null ? {} : { action },
  })
}

/** Refuses a caller without permission for any resource; for uploads, before their body is read. */
export async function refuseIfNeverAllowed(inv: Invocation, caller: Caller): Promise<void> {
  const { operation, audit } = inv
  const action = operation.action as string
  if (couldEverAllow(caller, action)) return
  inv.decided = true
  const requested = operation.receive ? undefined : requestedProject(inv)
  const project = requested !== undefined && (await projectExists(inv, requested)) ? requested : caller.project_id
  audit.project_id = project
  audit.resource_srn = operation.kind ? targetName({ kind: operation.kind, project_id: project }) : null
  raiseForbidden(caller, action)
}

async function authorizeAdmin(inv: Invocation, caller: Caller, action: string, kind: Kind | null): Promise<void> {
  const { operation, audit } = inv
  const id = operation.param ? itemId(inv) : undefined
  if (kind) audit.resource_srn = id ? `srn:*:${kind.name}:${id}` : targetName({ kind })
  if (kind && id) audit.resource_public_id = id
  const row = id ? ({ id, project_id: null } as KindRow) : undefined
  if (!passesAdminGate(caller, action, kind ? { kind, row } : null)) raiseForbidden(null, action)
  if (operation.shape === 'item') await loadItem(inv, caller)
}

async function authorizeItem(inv: Invocation, caller: Caller, action: string, kind: Kind): Promise<void> {
  const { audit } = inv
  const id = itemId(inv)
  if (!couldEverAllow(caller, action)) {
    audit.resource_public_id = id
    // The response is the same for every id; only the audit entry of a refused change contains the resource.
    const row = inv.operation.reads ? null : await findItem(inv)
    audit.project_id = row?.project_id ?? caller.project_id
    audit.resource_srn = row ? targetName({ kind, row }) : `srn:${caller.project_id ?? '*'}:${kind.name}:${id}`
    raiseForbidden(caller, action)
  }
  audit.resource_srn = `srn:${caller.project_id ?? '*'}:${kind.name}:${id}`
  const permit = async () =>
    requirePermitted(caller, action, { kind, row: await loadItem(inv, caller), requestTags: bodyTags(inv) })
  try {
    await permit()
  } catch (error) {
    if (!inv.isCached) throw error
    inv.mayBeCached = false
    inv.grant = null
    await permit()
  }
}

async function authorizeCreate(inv: Invocation, caller: Caller, action: string, kind: Kind): Promise<void> {
  const { operation, audit } = inv
  await refuseIfNeverAllowed(inv, caller)
  const body = (inv.body ?? {}) as Record<string, unknown>
  const parent = operation.under && (await findParent(inv, caller, operation.under, body))
  if (parent) return authorizeUnder(inv, caller, action, parent)
  if (operation.under) return authorizeList(inv, caller, action, operation.under.kind)
  let project = requestedProject(inv) ?? caller.project_id
  if (project === null && operation.projectOf) {
    requireStorable(inv)
    project = await operation.projectOf(body, inv.db, caller)
  }
  if (project === null)
    return raiseInvalid({
      code: 'REQUIRED',
      path: 'project_id',
      message: 'is required for credentials that are not bound to a project',
    })
  const path = await operation.pathOf?.(body, inv.db, project, caller)
  const tags = bodyTags(inv)
  audit.resource_srn = targetName({ kind, project_id: project })
  audit.project_id = project
  const target = { kind, project_id: project, path, tags: tags ?? {}, requestTags: tags }
  if (!isAllowed(caller, action, target)) {
    if (!(await projectExists(inv, project))) audit.project_id = null
    raiseForbidden(caller, action, target)
  }
  // The project of a bound credential exists (foreign key); only a requested project is checked.
  if (caller.project_id === null && !(await projectExists(inv, project))) {
    audit.project_id = null
    raise('RESOURCE_NOT_FOUND', { meta: { id: project } })
  }
  enterProject(inv, project)
}

/** Returns the parent row of a create; null if it does not exist or is invisible to the caller. */
async function findParent(
  inv: Invocation,
  caller: Caller,
  { kind, field, find = (db, id) => kind.find(db, id) }: ParentRoute,
  body: Record<string, unknown>,
): Promise<PolicyTarget | null> {
  const id = body[field]
  if (typeof id !== 'string' || !isIdOf(kind, id)) return null
  const row = await find(inv.db, id, body, caller)
  if (!row || !canSeeProject(caller, row.project_id)) return null
  inv.under = row
  return { kind, row }
}

function authorizeUnder(inv: Invocation, caller: Caller, action: string, target: PolicyTarget): void {
  const project = target.row?.project_id ?? null
  inv.audit.resource_srn = targetName(target)
  inv.audit.project_id = project
  requirePermitted(caller, action, { ...target, requestTags: bodyTags(inv) })
  enterProject(inv, project)
}

async function authorizeList(inv: Invocation, caller: Caller, action: string, kind: Kind | null): Promise<void> {
  const { audit } = inv
  const project = requestedProject(inv) ?? caller.project_id
  await refuseIfNeverAllowed(inv, caller)
  if (project === null) {
    if (kind && kind.name !== 'project' && !listAllowedAnywhere(caller, action, listTargetOf(kind)))
      raiseForbidden(caller, action)
    return
  }
  if (!listAllowed(caller, action, listTargetOf(kind), project)) raiseForbidden(caller, action)
  if (caller.project_id === null && !(await projectExists(inv, project)))
    raise('RESOURCE_NOT_FOUND', { meta: { id: project } })
  enterProject(inv, project)
  audit.project_id = project
  audit.resource_srn = kind ? targetName({ kind, project_id: project }) : null
}

/** Returns the tags that the body sets; the body of a tag operation consists of the tags. */
function bodyTags({ operation, body }: Invocation): Record<string, string> | undefined {
  const tags = operation.path.endsWith('/tags') ? body : (body as { tags?: unknown } | undefined)?.tags
  if (!isObject(tags)) return undefined
  return Object.fromEntries(
    Object.entries(tags).filter((entry): entry is [string, string] => typeof entry[1] === 'string'),
  )
}
