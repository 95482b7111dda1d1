import { isAllowed, mayReach, passesAdminGate } from '#core/api/access.ts'
import type { JsonObject } from '#core/api/flatten.ts'
import { isIdOf, type Kind, type KindRow } from '#core/api/kind.ts'
import { type Operation, operations } from '#core/api/operation.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import type { BuiltInType, Live, TemplateType } from '../types/model.ts'
import type { ResourceStep } from './step.ts'

/** Operation calls of steps and their authorization. */

export type ResourceCall = {
  type: BuiltInType
  operation: Operation
  args: JsonObject
  /** The resource of the call; null for a create. */
  live: Live | null
}

/** Returns the calls of a step, in order. */
export function stepCalls({ declared, action, live, desired, changed }: ResourceStep): ResourceCall[] {
  const { type, retain, deferred } = declared
  if (type.registered || action === 'no-op') return []
  const { create, update, tags } = type.operations
  const { later } = type
  const call = (operation: Operation, on: Live | null): ResourceCall => ({ type, operation, args: desired, live: on })
  if (action === 'update') {
    const change = changeOf(type, live, Object.fromEntries(changed.map(name => [name, desired[name]])))
    if (change) return [change]
    const isDirect = changed.some(name => name !== 'tags' || !tags)
    return [
      ...(update && isDirect ? [call(update, live)] : []),
      ...(tags && changed.includes('tags') ? [call(tags, live)] : []),
    ]
  }
  const rest = Object.keys(desired).filter(name => later.has(name) || deferred.has(name))
  return [
    call(create, null),
    ...(update && rest.some(name => name !== 'tags' || !tags) ? [call(update, null)] : []),
    ...(tags && rest.includes('tags') ? [call(tags, null)] : []),
    ...(action === 'replace' && !retain && live ? deleteCalls(type, live) : []),
  ]
}

function changeOf(type: BuiltInType, live: Live | null, changed: JsonObject): ResourceCall | null {
  if (!live?.row || !type.declared.changing) return null
  const { operation, args } = type.declared.changing(live.row, changed)
  return { type, operation: operations.get(operation), args, live }
}

/** Returns the call that deletes a resource; none if a delete leaves it unchanged. */
export function deleteCalls(type: BuiltInType, live: Live): ResourceCall[] {
  const { deleting } = type.declared
  if (!deleting || !live.row) return [{ type, operation: type.operations.delete, args: {}, live }]
  const call = deleting(live.row)
  return call ? [{ type, operation: operations.get(call.operation), args: call.args, live }] : []
}

type Parent = { kind: Kind<any>; field: string }

/** Returns the kind on which an operation is authorized if it is not the resource, and the argument with its ID. */
function parentOf(type: BuiltInType, { under, shape, kind, param }: Operation): Parent | null {
  if (under) return under
  return shape === 'item' && kind && param && kind.name !== type.kind.name ? { kind, field: param } : null
}

const parentId = ({ field }: Parent, args: JsonObject, projectId: string): unknown =>
  field === 'project_id' ? projectId : args[field]

/** Reads the rows of a project, other than the resources themselves, on which calls are authorized, by ID. */
export async function readParents(
  db: Queryable,
  calls: readonly ResourceCall[],
  projectId: string,
): Promise<Map<string, KindRow>> {
  const found = new Map<string, KindRow>()
  const seen = new Set<string>()
  for (const { type, operation, args } of calls) {
    const parent = parentOf(type, operation)
    const id = parent && parentId(parent, args, projectId)
    if (!parent || typeof id !== 'string' || seen.has(id) || !isIdOf(parent.kind, id)) continue
    seen.add(id)
    const row: KindRow | null = await parent.kind.find(db, id)
    if (row && (id === projectId || row.project_id === projectId)) found.set(id, row)
  }
  return found
}

/** Whether a caller may make a call. A parent that does not exist yet is treated as a new resource of the project. */
export function mayCall(
  caller: Caller,
  { type, operation, args, live }: ResourceCall,
  parents: ReadonlyMap<string, KindRow>,
  projectId: string,
): boolean {
  const { action, gate, decide } = operation
  const row = live?.row ?? undefined
  if (!mayReach(caller, operation)) return false
  if (gate === 'admin') return passesAdminGate(caller, action as string, { kind: type.kind, row })
  if (gate === 'owner') return decide?.(caller, row, 'formation') === 'allow'
  const { tags } = args
  const requestTags = typeof tags === 'object' && tags !== null ? (tags as Record<string, string>) : undefined
  const parent = parentOf(type, operation)
  const kind = parent?.kind ?? type.kind
  const of = parent ? parents.get(parentId(parent, args, projectId) as string) : row
  const target = of ? { kind, row: of } : { kind, project_id: projectId, tags: parent ? {} : (requestTags ?? {}) }
  return isAllowed(caller, action as string, { ...target, requestTags })
}

/** Returns for each resource whether the caller may call its read operation. */
export async function canReadResources(
  db: Queryable,
  caller: Caller,
  resources: readonly { type: TemplateType; live: Live | null; args: JsonObject }[],
  projectId: string,
): Promise<boolean[]> {
  const calls = resources.map(({ type, live, args }): ResourceCall | null =>
    type.registered || !live?.row ? null : { type, operation: type.operations.read, args, live },
  )
  const parents = await readParents(
    db,
    calls.filter(call => call !== null),
    projectId,
  )
  return calls.map(call => call === null || mayCall(caller, call, parents, projectId))
}
