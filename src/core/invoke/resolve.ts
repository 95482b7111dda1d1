import { auditText } from '../api/audit.ts'
import { raise, raiseInvalid } from '../api/errors.ts'
import { grantSourceOf } from '../api/grants.ts'
import { isIdOf, type Kind, type KindRow, kinds } from '../api/kind.ts'
import type { Operation, TargetGrant } from '../api/operation.ts'
import { isStorable } from '../api/validate.ts'
import { coalescedReads } from '../db/coalesced-reads.ts'
import { idStatement } from '../db/sql.ts'
import { canSeeProject, requireBoundProject, targetName } from '../iam/access.ts'
import { type Caller, isAdmin } from '../iam/caller.ts'
import { processSingleton } from '../process/process-singleton.ts'
import type { Invocation } from './invocation.ts'

/** Step: who calls, which row and which project a call is about. */

/** The caller as of now. Raises UNAUTHORIZED. */
export async function authenticateCaller(inv: Invocation): Promise<Caller> {
  const caller = (await inv.call.identify()) ?? raise('UNAUTHORIZED')
  inv.caller = caller
  inv.tenancy.tenant = caller.project_id ?? `user:${caller.user.id}`
  return caller
}

/** Path parameters that the database cannot hold name nothing. Raises RESOURCE_NOT_FOUND. */
export function requireStorableParams({ call }: Invocation): void {
  for (const value of Object.values(call.params))
    if (typeof value !== 'string' || !isStorable(value))
      raise('RESOURCE_NOT_FOUND', { meta: { id: String(value).slice(0, 200) } })
}

export const itemId = ({ operation, call }: Invocation): string => call.params[operation.param as string]

const itemReads = processSingleton(() => coalescedReads<KindRow | null>())

/** The row under an item's id, whoever may know of it. */
export async function findItem(inv: Invocation): Promise<KindRow | null> {
  const { operation, db, call, services, tenancy } = inv
  const kind = operation.kind as Kind
  const id = itemId(inv)
  if (!isIdOf(kind, id)) return null
  const read = () => (operation.find ?? kind.find)(db, id)
  // What a tenant asks for waits for its own connections alone.
  return operation.joined && !call.tx
    ? itemReads(services)(`${operation.id} ${tenancy.tenant} ${id}`, read)
    : await read()
}

/**
 * Notes the item, and returns its row as policies name it. Its project must be visible to the caller or have granted it to
 * the one that acts, else it is as if it did not exist. Raises `notFound`, API_KEY_PROJECT_SCOPE.
 */
export async function loadItem(inv: Invocation, caller: Caller): Promise<KindRow> {
  const kind = inv.operation.kind as Kind
  const id = itemId(inv)
  inv.audit.resource_public_id = id
  const row = await findItem(inv)
  const grant = row && (inv.grant ?? (await grantFor(inv, caller, row)))
  if (!row || !grant || (grant === 'none' && !mayKnow(inv, caller, row))) return raise(kind.notFound, { meta: { id } })
  const known = grant === 'none' ? row : { ...row, project_id: grant.project_id }
  noteItem(inv, known)
  if (grant !== 'none') {
    inv.grant = grant
    inv.resource = grant.row
    inv.audit.detail.granted_by_project = row.project_id
  }
  return known
}

/**
 * By what the project that acts reaches a row of another one; `none` where the row is its own, null where it is hidden
 * from it. Raises API_KEY_PROJECT_SCOPE.
 */
async function grantFor(inv: Invocation, caller: Caller, row: KindRow): Promise<TargetGrant | 'none' | null> {
  const { operation, db } = inv
  const kind = operation.kind as Kind
  const project_id = requestedProject(inv) ?? caller.project_id
  if (project_id === null || row.project_id === null || project_id === row.project_id) return 'none'
  const granting =
    operation.gate === 'policy' && canSeeProject(caller, project_id) ? grantSourceOf(kind.name) : undefined
  const found = (await granting?.grant(db, { operation, kind, row, caller, project_id })) ?? 'none'
  if (found === 'refused') refuseOtherProject(inv, caller, row.project_id)
  return found === 'hidden' || found === 'refused' ? null : found
}

/** The item of a request that came with a pass for it. */
export async function loadItemByPass(inv: Invocation): Promise<void> {
  inv.resource = (await findItem(inv)) ?? raise((inv.operation.kind as Kind).notFound, { meta: { id: itemId(inv) } })
}

function noteItem(inv: Invocation, row: KindRow): void {
  inv.resource = row
  enterProject(inv, row.project_id)
  inv.audit.project_id = row.project_id
  inv.audit.resource_srn = targetName({ kind: inv.operation.kind as Kind, row })
}

/**
 * Owners know what is theirs whatever their policies say of its project. A row without a project of a kind that has
 * projects is the deployment's: for admins with an unbound credential.
 */
function mayKnow({ operation: { gate, decide, kind }, call }: Invocation, caller: Caller, row: KindRow): boolean {
  if (gate === 'policy' && row.project_id === null && !kind?.global)
    return isAdmin(caller) && caller.project_id === null
  return gate === 'owner' && decide
    ? decide(caller, row, call.surface) !== 'hide'
    : canSeeProject(caller, row.project_id)
}

/** The project that the query or the body names; undefined when neither does. Raises VALIDATION_FAILED for no string. */
export function requestedProject({ operation, call, body }: Invocation): string | undefined {
  const inBody = operation.namesProject ? (body as { project_id?: unknown } | undefined)?.project_id : undefined
  const named = call.query.project_id ?? inBody ?? undefined
  if (named !== undefined && typeof named !== 'string')
    raiseInvalid({ code: 'INVALID_TYPE', path: 'project_id', message: 'must be a string' })
  return named
}

/**
 * A bound credential stays in its project, whatever it may do there: checked before its rights, and recorded under its own
 * project. Raises API_KEY_PROJECT_SCOPE.
 */
export function requireCredentialProject(inv: Invocation, caller: Caller): void {
  const requested = inv.operation.kind?.name === 'project' && inv.operation.param ? itemId(inv) : requestedProject(inv)
  if (requested !== undefined) refuseOtherProject(inv, caller, requested)
}

function refuseOtherProject(inv: Invocation, caller: Caller, requested: string): void {
  if (caller.project_id === null || caller.project_id === requested) return
  inv.decided = true
  inv.audit.project_id = caller.project_id
  inv.audit.detail.requested_project = auditText(requested)
  inv.audit.resource_srn ??= typeName(inv.operation, caller.project_id)
  requireBoundProject(caller, requested)
}

const typeName = ({ kind }: Operation, project: string): string | null =>
  kind ? targetName({ kind, project_id: project }) : null

/** From here on the call is about one project, and takes from its part of the connections. */
export function enterProject(inv: Invocation, project: string | null): void {
  inv.project = project
  if (project !== null) inv.tenancy.tenant = project
}

export async function projectExists({ db }: Invocation, id: string): Promise<boolean> {
  if (!isIdOf(kinds.get('project'), id)) return false
  return db.exists(idStatement`select id from projects where id = ${id}`)
}
