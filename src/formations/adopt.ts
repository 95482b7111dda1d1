import { type Problem, raise, raiseInvalid } from '../core/api/errors.ts'
import { newId } from '../core/api/ids.ts'
import type { Operation } from '../core/api/operation.ts'
import type { Tx } from '../core/db/writer.ts'
import type { Caller } from '../core/iam/caller.ts'
import type { Services } from '../core/process/services.ts'
import { refuseBusy, refuseDenied } from './accept.ts'
import { findLive } from './live.ts'
import { formationKind } from './model.ts'
import { isTracked, trackExisting, trackedResources } from './store.ts'
import type { ResourceDeclaration } from './template/shape.ts'
import { mayCall, parentsOf } from './types/calls.ts'
import { findType } from './types/find.ts'
import { readHandled } from './types/handler.ts'
import type { Live, TemplateType } from './types/model.ts'

/** A resource that exists and that a formation is to manage. The next deploy makes it what the template says. */

const refuse = (path: string, code: Problem['code'], message: string): never => raiseInvalid({ code, path, message })

/** Adopts a resource of the project. Raises what refuses it. */
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
  if (!Object.hasOwn(resources, logical_id)) refuse('logical_id', 'NOT_FOUND', 'names no resource of the template')
  const declared = resources[logical_id]
  const type = findType(services, declared.type)
  if (!type)
    return refuse('logical_id', 'INVALID_VALUE', `names a resource of the type ${declared.type}, which is not there`)
  const { project_id } = formation
  const tracked = await trackedResources(tx, formationId)
  const row = tracked.find(each => each.logical_id === logical_id && each.resource_type === type.name)
  const has = row?.physical_resource_id ?? null
  if (has !== null && (await existing(services, tx, type, logical_id, has, project_id)))
    refuse('logical_id', 'INVALID_VALUE', `names a resource that is there: ${has}`)
  const live = await existing(services, tx, type, logical_id, id, project_id)
  if (!live) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  if (!type.registered) {
    const { update, create } = type.operations
    const operation: Operation = update ?? create
    // Two formations may want it at once.
    await type.kind.lock(tx, id)
    const call = { type, operation, args: live.values, live }
    if (!mayCall(caller, call, await parentsOf(tx, [call], project_id), project_id))
      refuseDenied([{ logical_id, resource_type: type.name, action: operation.action as string }])
  }
  if (await isTracked(tx, type.name, id, type.registered ? project_id : null))
    refuse('physical_resource_id', 'INVALID_VALUE', 'is managed by a formation already')
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

async function existing(
  services: Services,
  tx: Tx,
  type: TemplateType,
  logicalId: string,
  id: string,
  projectId: string,
): Promise<Live | null> {
  if (!type.registered) return findLive(tx, type, id, projectId)
  if (!type.registered.capabilities.includes('read'))
    return refuse('physical_resource_id', 'INVALID_VALUE', `cannot be read: the handler of ${type.name} shows none`)
  return readHandled(
    services,
    type.registered,
    { id: logicalId, logical_id: logicalId, physical_resource_id: id, applied: {} },
    projectId,
  )
}
