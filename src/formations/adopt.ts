import { type Problem, raise, raiseInvalid } from '../core/api/errors.ts'
import { newId } from '../core/api/ids.ts'
import type { Operation } from '../core/api/operation.ts'
import type { Tx } from '../core/db/writer.ts'
import type { Caller } from '../core/iam/caller.ts'
import type { Services } from '../core/process/services.ts'
import { refuseBusy, refuseDenied } from './accept.ts'
import { findLive } from './live.ts'
import { formationKind } from './model.ts'
import { isTracked, listTrackedResources, trackExisting } from './store.ts'
import type { ResourceDeclaration } from './template/shape.ts'
import { mayCall, readParents } from './types/calls.ts'
import { findType } from './types/find.ts'
import { readFromHandler } from './types/handler.ts'
import type { Live, TemplateType } from './types/model.ts'

/** Import of an existing resource into a formation. The next deploy changes the resource to match the template. */

const refuse = (path: string, code: Problem['code'], message: string): never => raiseInvalid({ code, path, message })

/**
 * Tracks an existing resource of the project. Locks the formation, then the resource.
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
  const declared = resources[logical_id]
  const type = findType(services, declared.type)
  if (!type) return refuse('logical_id', 'INVALID_VALUE', `has the type ${declared.type}, which does not exist`)
  const { project_id } = formation
  const tracked = await listTrackedResources(tx, formationId)
  const row = tracked.find(each => each.logical_id === logical_id && each.resource_type === type.name)
  const currentId = row?.physical_resource_id ?? null
  if (currentId !== null && (await readLive(services, tx, type, logical_id, currentId, project_id)))
    refuse('logical_id', 'INVALID_VALUE', `already has the resource ${currentId}`)
  const live = await readLive(services, tx, type, logical_id, id, project_id)
  if (!live) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  if (!type.registered) {
    const { update, create } = type.operations
    const operation: Operation = update ?? create
    // Serializes concurrent imports of the resource.
    await type.kind.lock(tx, id)
    const call = { type, operation, args: live.values, live }
    if (!mayCall(caller, call, await readParents(tx, [call], project_id), project_id))
      refuseDenied([{ logical_id, resource_type: type.name, action: operation.action as string }])
  }
  if (await isTracked(tx, type.name, id, type.registered ? project_id : null))
    refuse('physical_resource_id', 'INVALID_VALUE', 'is already managed by a formation')
  await trackExisting(tx, formationId, {
    id: row?.id ?? newId('form_res'),
    logical_id,
    resource_type: type.name,
    physical_resource_id: id,
    position: row?.position ?? Math.max(0, ...tracked.map(({ position }) => position + 1)),
    retain: declared.deletion_policy === 'retain',
    prevent_destroy: declared.prevent_destroy ?? false,
  })
}

async function readLive(
  services: Services,
  tx: Tx,
  type: TemplateType,
  logicalId: string,
  id: string,
  projectId: string,
): Promise<Live | null> {
  if (!type.registered) return findLive(tx, type, id, projectId)
  if (!type.registered.capabilities.includes('read'))
    return refuse(
      'physical_resource_id',
      'INVALID_VALUE',
      `cannot be imported: the handler of ${type.name} does not support read`,
    )
  return readFromHandler(
    services,
    type.registered,
    { id: logicalId, logical_id: logicalId, physical_resource_id: id, applied: {} },
    projectId,
  )
}
