import type { Operation } from '#core/api/operation.ts'
import { type Problem, raise, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { formationKind, refuseBusy } from '../records/model.ts'
import { isTracked, listTrackedResources, newTrackedRow, type TrackedRow, trackExisting } from '../records/store.ts'
import type { ResourceDeclaration } from '../template/shape.ts'
import { findType } from '../types/find.ts'
import { readFromHandler } from '../types/handler.ts'
import type { Live, TemplateType } from '../types/model.ts'
import { mayCall, readParents } from './calls.ts'
import type { DeclaredResource } from './compile.ts'
import { findLive } from './live.ts'
import { refuseDenied } from './plan.ts'

/** Import of existing resources into a formation. The next deploy changes them to match the template. */

type Declaration = Pick<DeclaredResource, 'logical_id' | 'type' | 'retain' | 'prevent_destroy'>

/** Path of a problem: of the logical ID and of the physical ID. */
type Paths = { logical: string; physical: string }

const refuse = (path: string, code: Problem['code'], message: string): never => raiseInvalid({ code, path, message })

/** A resource to import. `previousId` is the physical ID of the row before, whose resource no longer exists. */
export type ImportedResource = {
  row: TrackedRow & { physical_resource_id: string }
  previousId: string | null
  type: TemplateType
  paths: Paths
}

type ImportContext = { services: Services; db: Queryable; caller: Caller; projectId: string }

/**
 * Finds an existing resource of the project to import under a declared name. Writes nothing.
 * @throws VALIDATION_FAILED, RESOURCE_NOT_FOUND, FORBIDDEN, FORMATION_HANDLER_FAILED
 */
async function findImported(
  context: ImportContext,
  tracked: readonly TrackedRow[],
  { logical_id, type, retain, prevent_destroy }: Declaration,
  id: string,
  paths: Paths,
): Promise<ImportedResource> {
  const { db, caller, projectId } = context
  const row = findTracked(tracked, logical_id, type)
  const currentId = row?.physical_resource_id ?? null
  if (currentId !== null && (await readLive(context, type, logical_id, currentId, paths.physical)))
    refuse(paths.logical, 'INVALID_VALUE', `already has the resource ${currentId}`)
  const live = await readLive(context, type, logical_id, id, paths.physical)
  if (!live) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  if (!type.registered) {
    const { update, create } = type.operations
    const operation: Operation = update ?? create
    const call = { type, operation, args: live.values, live }
    if (!mayCall(caller, call, await readParents(db, [call], projectId), projectId))
      refuseDenied([{ logical_id, resource_type: type.name, action: operation.action as string }])
  }
  await requireUntracked(db, type, id, projectId, paths.physical)
  return {
    row: {
      ...newTrackedRow,
      id: row?.id ?? newId('form_res'),
      logical_id,
      resource_type: type.name,
      physical_resource_id: id,
      position: row?.position ?? Math.max(0, ...tracked.map(({ position }) => position + 1)),
      retain,
      prevent_destroy,
    },
    previousId: currentId,
    type,
    paths,
  }
}

const findTracked = (tracked: readonly TrackedRow[], logicalId: string, { name }: TemplateType) =>
  tracked.find(({ logical_id, resource_type }) => logical_id === logicalId && resource_type === name)

async function requireUntracked(
  db: Queryable,
  type: TemplateType,
  id: string,
  projectId: string,
  path: string,
): Promise<void> {
  if (await isTracked(db, type.name, id, type.registered ? projectId : null))
    refuse(path, 'INVALID_VALUE', 'is already managed by a formation')
}

/**
 * Returns the resources that a deploy imports. `ids` are the IDs of existing resources by the logical IDs of the template.
 * @throws VALIDATION_FAILED, RESOURCE_NOT_FOUND, FORBIDDEN, FORMATION_HANDLER_FAILED
 */
export async function resolveImportedResources(
  context: ImportContext,
  tracked: readonly TrackedRow[],
  declared: readonly DeclaredResource[],
  ids: Readonly<Record<string, string>>,
): Promise<ImportedResource[]> {
  const imported: ImportedResource[] = []
  for (const [logicalId, id] of Object.entries(ids)) {
    const path = `import_resources.${logicalId}`
    const declaration = declared.find(each => each.logical_id === logicalId)
    if (!declaration) return refuse(path, 'NOT_FOUND', 'is not a resource of the template')
    if (imported.some(({ row, type }) => row.physical_resource_id === id && type.name === declaration.type.name))
      refuse(path, 'INVALID_VALUE', `imports ${id} a second time`)
    imported.push(await findImported(context, tracked, declaration, id, { logical: path, physical: path }))
  }
  return imported
}

/**
 * Tracks imported resources of a locked formation. Locks them in ID order. Raises VALIDATION_FAILED for a resource that a
 * formation manages, and for a name that has a resource since the import was checked.
 */
export async function trackImported(
  tx: Tx,
  projectId: string,
  formationId: string,
  imported: readonly ImportedResource[],
): Promise<void> {
  if (imported.length === 0) return
  const tracked = await listTrackedResources(tx, formationId)
  const ordered = imported.toSorted((one, other) =>
    one.row.physical_resource_id < other.row.physical_resource_id ? -1 : 1,
  )
  for (const { row, previousId, type, paths } of ordered) {
    const currentId = findTracked(tracked, row.logical_id, type)?.physical_resource_id ?? null
    if (currentId !== previousId) refuse(paths.logical, 'INVALID_VALUE', `already has the resource ${currentId}`)
    // Serializes concurrent imports of the resource.
    if (!type.registered) await type.kind.lock(tx, row.physical_resource_id)
    await requireUntracked(tx, type, row.physical_resource_id, projectId, paths.physical)
    await trackExisting(tx, formationId, row)
  }
}

/**
 * Tracks an existing resource of the project under a name that the stored template declares. Locks the formation, then the
 * resource.
 * @throws VALIDATION_FAILED, RESOURCE_NOT_FOUND, FORBIDDEN, FORMATION_OPERATION_IN_PROGRESS, FORMATION_HANDLER_FAILED
 */
export async function adoptResource(
  tx: Tx,
  services: Services,
  caller: Caller,
  formationId: string,
  { logical_id, physical_resource_id: id }: { logical_id: string; physical_resource_id: string },
): Promise<void> {
  const formation = await formationKind.lock(tx, formationId)
  refuseBusy(formation)
  const resources = formation.template.resources as Record<string, ResourceDeclaration>
  if (!Object.hasOwn(resources, logical_id)) refuse('logical_id', 'NOT_FOUND', 'is not a resource of the template')
  const { type: name, deletion_policy, prevent_destroy = false } = resources[logical_id]
  const type = findType(services, name)
  if (!type) return refuse('logical_id', 'INVALID_VALUE', `has the type ${name}, which does not exist`)
  const { project_id: projectId } = formation
  const declaration = { logical_id, type, retain: deletion_policy === 'retain', prevent_destroy }
  const paths = { logical: 'logical_id', physical: 'physical_resource_id' }
  const tracked = await listTrackedResources(tx, formationId)
  const imported = await findImported({ services, db: tx, caller, projectId }, tracked, declaration, id, paths)
  await trackImported(tx, projectId, formationId, [imported])
}

async function readLive(
  { services, db, projectId }: ImportContext,
  type: TemplateType,
  logicalId: string,
  id: string,
  path: string,
): Promise<Live | null> {
  if (!type.registered) return findLive(services, db, type, { id, projectId })
  if (!type.registered.capabilities.includes('read'))
    return refuse(path, 'INVALID_VALUE', `cannot be imported: the handler of ${type.name} does not support read`)
  return readFromHandler(
    services,
    type.registered,
    { id: logicalId, logical_id: logicalId, physical_resource_id: id, applied: {} },
    projectId,
  )
}
