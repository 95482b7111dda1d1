import { canSeeProject, requireBoundProject, targetName } from '../api/access.ts'
import { auditText } from '../api/audit.ts'
import { grantSourceOf } from '../api/grants.ts'
import { isIdOf, type Kind, type KindRow, kinds } from '../api/kind.ts'
import type { Operation, TargetGrant } from '../api/operation.ts'
import { isStorable } from '../api/validate.ts'
import { raise, raiseInvalid } from '../base/errors.ts'
import { processSingleton } from '../base/process-singleton.ts'
import { coalescedReads } from '../db/coalesced-reads.ts'
import { idStatement } from '../db/sql.ts'
import { type Caller, isAdmin } from '../iam/caller.ts'
import { isOwnItem, requireEndUserAccess } from './end-user.ts'
import type { Invocation } from './invocation.ts'

/** Step: resolves the caller, row and project of a call. */

/** Returns the current caller. Raises UNAUTHORIZED, and FORBIDDEN for an end user. */
export async function authenticateCaller(inv: Invocation): Promise<Caller> {
  const caller = (await inv.call.identify()) ?? raise('UNAUTHORIZED')
  inv.caller = caller
  inv.tenancy.tenant = caller.project_id ?? `user:${caller.user.id}`
  if (caller.end_user) requireEndUserAccess(inv, caller.end_user)
  return caller
}

/** Raises RESOURCE_NOT_FOUND for path parameters that the database cannot store. */
export function requireStorableParams(params: object): void {
  for (const value of Object.values(params).flat())
    if (typeof value !== 'string' || !isStorable(value))
      raise('RESOURCE_NOT_FOUND', { meta: { id: String(value).slice(0, 200) } })
}

export const itemId = ({ operation, call }: Invocation): string => call.params[operation.param as string]

const itemReads = processSingleton(() => coalescedReads<KindRow | null>())

/** Returns the row of an item without a visibility check, or null. */
export async function findItem(inv: Invocation): Promise<KindRow | null> {
  const { operation, db, call, services, tenancy } = inv
  const kind = operation.kind as Kind
  const id = itemId(inv)
  if (inv.read !== undefined) return inv.read
  if (!isIdOf(kind, id)) return null
  const cache = inv.mayBeCached ? operation.cache?.(services) : undefined
  const cachedRow = cache?.get(id)
  inv.isCached = cachedRow !== undefined
  if (cachedRow) return cachedRow
  const read = () => (operation.find ?? kind.find)(db, id)
  // Reads are shared per tenant, so that a tenant waits only for its own connections.
  const row = await (operation.joined && !call.tx
    ? itemReads(services)(`${operation.id} ${tenancy.tenant} ${id}`, read)
    : read())
  if (row) cache?.set(row)
  return row
}

/**
 * Loads the item into the invocation and returns the row to authorize. Its project must be visible to the caller, or grant
 * the row to the acting project. Raises `notFound` and API_KEY_PROJECT_SCOPE.
 */
export async function loadItem(inv: Invocation, caller: Caller): Promise<KindRow> {
  const kind = inv.operation.kind as Kind
  const id = itemId(inv)
  inv.audit.resource_public_id = id
  const row = await findItem(inv)
  const grant = row && (inv.grant ?? (await findGrant(inv, caller, row)))
  if (!row || !grant || (grant === 'none' && !isVisible(inv, caller, row)) || !(await isOwnItem(inv, caller, row)))
    return raise(kind.notFound, { meta: { id } })
  const target = grant === 'none' ? row : { ...row, project_id: grant.project_id }
  setItem(inv, target)
  if (grant !== 'none') {
    inv.grant = grant
    inv.resource = grant.row
    inv.audit.detail.granted_by_project = row.project_id
  }
  return target
}

/**
 * Returns the grant by which the acting project may use a row of another project; `none` for its own row, null for a hidden
 * row. Raises API_KEY_PROJECT_SCOPE.
 */
async function findGrant(inv: Invocation, caller: Caller, row: KindRow): Promise<TargetGrant | 'none' | null> {
  const { operation, db } = inv
  const kind = operation.kind as Kind
  const project_id = requestedProject(inv) ?? caller.project_id
  if (project_id === null || row.project_id === null || project_id === row.project_id) return 'none'
  const source = operation.gate === 'policy' && canSeeProject(caller, project_id) ? grantSourceOf(kind.name) : undefined
  const found = (await source?.grant(db, { operation, kind, row, caller, project_id })) ?? 'none'
  if (found === 'refused') refuseOtherProject(inv, caller, row.project_id)
  return found === 'hidden' || found === 'refused' ? null : found
}

/** Loads the item of a request with a valid pass. */
export async function loadItemByPass(inv: Invocation): Promise<void> {
  inv.resource = (await findItem(inv)) ?? raise((inv.operation.kind as Kind).notFound, { meta: { id: itemId(inv) } })
}

function setItem(inv: Invocation, row: KindRow): void {
  inv.resource = row
  enterProject(inv, row.project_id)
  inv.audit.project_id = row.project_id
  inv.audit.resource_srn = targetName({ kind: inv.operation.kind as Kind, row })
}

/**
 * Whether a row is visible to the caller. Owners see their rows regardless of policies. A row without a project, of a kind
 * with projects, belongs to the deployment and is visible to admins with an unbound credential.
 */
function isVisible({ operation: { gate, decide, kind }, call }: Invocation, caller: Caller, row: KindRow): boolean {
  if (gate === 'policy' && row.project_id === null && !kind?.global)
    return isAdmin(caller) && caller.project_id === null
  return gate === 'owner' && decide
    ? decide(caller, row, call.surface) !== 'hide'
    : canSeeProject(caller, row.project_id)
}

/** Returns the project in the query or body, or undefined. Raises VALIDATION_FAILED if it is not a string. */
export function requestedProject({ operation, call, body }: Invocation): string | undefined {
  const inBody = operation.namesProject ? (body as { project_id?: unknown } | undefined)?.project_id : undefined
  const requested = call.query.project_id ?? inBody ?? undefined
  if (requested !== undefined && typeof requested !== 'string')
    raiseInvalid({ code: 'INVALID_TYPE', path: 'project_id', message: 'must be a string' })
  return requested
}

/**
 * Requires that a bound credential requests its own project. Checked before permissions; audited under the project of the
 * credential. Raises API_KEY_PROJECT_SCOPE.
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

/** Sets the project of the call, whose share of the connections it uses from then on. */
export function enterProject(inv: Invocation, project: string | null): void {
  inv.project = project
  if (project !== null) inv.tenancy.tenant = project
}

export async function projectExists({ db }: Pick<Invocation, 'db'>, id: string): Promise<boolean> {
  if (!isIdOf(kinds.get('project'), id)) return false
  return db.exists(idStatement`select id from projects where id = ${id}`)
}
