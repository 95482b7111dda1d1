import type { JsonObject } from '../../core/api/flatten.ts'
import { isIdOf, type Kind, type KindRow } from '../../core/api/kind.ts'
import { type Operation, operations } from '../../core/api/operation.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { isAllowed, passesAdminGate } from '../../core/iam/access.ts'
import type { Caller } from '../../core/iam/caller.ts'
import type { ResourceStep } from '../step.ts'
import type { BuiltInType, Live, TemplateType } from './model.ts'

/** The operations that a step calls, for the rights that it needs. */

export type ResourceCall = {
  type: BuiltInType
  operation: Operation
  args: JsonObject
  /** The resource that the call is on; null for one that is created. */
  live: Live | null
}

/** The calls of a step in their order. */
export function callsOf({ declared, action, live, desired, changed }: ResourceStep): ResourceCall[] {
  const { type, retain } = declared
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
  const rest = Object.keys(desired).filter(name => later.has(name))
  return [
    call(create, null),
    ...(update && rest.some(name => name !== 'tags' || !tags) ? [call(update, null)] : []),
    ...(tags && rest.includes('tags') ? [call(tags, null)] : []),
    ...(action === 'replace' && !retain && live ? deletionOf(type, live) : []),
  ]
}

function changeOf(type: BuiltInType, live: Live | null, changed: JsonObject): ResourceCall | null {
  if (!live?.row || !type.declared.changing) return null
  const { operation, args } = type.declared.changing(live.row, changed)
  return { type, operation: operations.get(operation), args, live }
}

/** The call that deletes a resource; none where it is left as it is. */
export function deletionOf(type: BuiltInType, live: Live): ResourceCall[] {
  const { deleting } = type.declared
  if (!deleting || !live.row) return [{ type, operation: type.operations.delete, args: {}, live }]
  const call = deleting(live.row)
  return call ? [{ type, operation: operations.get(call.operation), args: call.args, live }] : []
}

type Parent = { kind: Kind<any>; field: string }

/** The kind of the row that an operation is decided on where it is not the resource, and the argument that names it. */
function parentOf(type: BuiltInType, { under, shape, kind, param }: Operation): Parent | null {
  if (under) return under
  return shape === 'item' && kind && param && kind.name !== type.kind.name ? { kind, field: param } : null
}

const namedIn = ({ field }: Parent, args: JsonObject, projectId: string): unknown =>
  field === 'project_id' ? projectId : args[field]

/** Rows of a project that calls are decided on beside the resources themselves, by their ids. */
export async function parentsOf(
  db: Queryable,
  calls: readonly ResourceCall[],
  projectId: string,
): Promise<Map<string, KindRow>> {
  const found = new Map<string, KindRow>()
  const asked = new Set<string>()
  for (const { type, operation, args } of calls) {
    const parent = parentOf(type, operation)
    const id = parent && namedIn(parent, args, projectId)
    if (!parent || typeof id !== 'string' || asked.has(id) || !isIdOf(parent.kind, id)) continue
    asked.add(id)
    const row: KindRow | null = await parent.kind.find(db, id)
    if (row && (id === projectId || row.project_id === projectId)) found.set(id, row)
  }
  return found
}

/** Whether a caller may make a call. What it is decided on may not be there yet: then anything of the project is. */
export function mayCall(
  caller: Caller,
  { type, operation, args, live }: ResourceCall,
  parents: ReadonlyMap<string, KindRow>,
  projectId: string,
): boolean {
  const { action, gate, decide } = operation
  const row = live?.row ?? undefined
  if (gate === 'admin') return passesAdminGate(caller, action as string, { kind: type.kind, row })
  if (gate === 'owner') return decide?.(caller, row, 'formation') === 'allow'
  const { tags } = args
  const requestTags = typeof tags === 'object' && tags !== null ? (tags as Record<string, string>) : undefined
  const parent = parentOf(type, operation)
  const kind = parent?.kind ?? type.kind
  const of = parent ? parents.get(namedIn(parent, args, projectId) as string) : row
  const target = of ? { kind, row: of } : { kind, project_id: projectId, tags: parent ? {} : (requestTags ?? {}) }
  return isAllowed(caller, action as string, { ...target, requestTags })
}

/** Which of some resources a caller may read by the operations that show them. */
export async function mayReadResource(
  db: Queryable,
  caller: Caller,
  resources: readonly { type: TemplateType; live: Live | null; args: JsonObject }[],
  projectId: string,
): Promise<boolean[]> {
  const calls = resources.map(({ type, live, args }): ResourceCall | null =>
    type.registered || !live?.row ? null : { type, operation: type.operations.read, args, live },
  )
  const parents = await parentsOf(
    db,
    calls.filter(call => call !== null),
    projectId,
  )
  return calls.map(call => call === null || mayCall(caller, call, parents, projectId))
}
