import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { isIdOf, type KindRow } from '../../core/api/kind.ts'
import { type Queryable, sql } from '../../core/db/sql.ts'
import type { Caller } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { findLive, liveOf } from '../live.ts'
import { type FormationRow, formationKind } from '../model.ts'
import { trackedResources } from '../store.ts'
import { MAX_BYTES } from '../template/parse.ts'
import { MAX_RESOURCES } from '../template/shape.ts'
import { builtInType, builtInTypes } from '../types/built-in.ts'
import { mayReadResource } from '../types/calls.ts'
import type { BuiltInType, Live } from '../types/model.ts'

/** Which resources an export is about. */

export type ExportSelection = { resources?: string[]; types?: string[]; formation_id?: string }

export type SelectedResource = { id: string; type: BuiltInType; live: Live }

/** Types that an export of a project leaves out unless they are named: credentials, and records of use. */
const NAMED_ONLY = ['api_key', 'conversation', 'session']

/**
 * The resources of a selection, the oldest first. Raises RESOURCE_NOT_FOUND for ids that name nothing the caller may read,
 * FORBIDDEN with what it may not read of the rest, VALIDATION_FAILED for more than a template may have.
 */
export async function selectResources(
  services: Services,
  caller: Caller,
  projectId: string,
  selection: ExportSelection,
  allowFormation: (row: FormationRow) => void,
): Promise<SelectedResource[]> {
  const { pool } = services
  const wanted = selection.types && typesNamed(services, selection.types)
  const found = new Map<string, SelectedResource>()
  let bytes = 0
  const add = (each: SelectedResource): void => {
    bytes += JSON.stringify(each.live.values).length
    if (bytes > MAX_BYTES)
      raiseInvalid({
        code: 'TOO_LARGE',
        path: 'types',
        message: `More than the ${MAX_BYTES} bytes that a template may have`,
      })
    found.set(each.id, each)
  }
  const { formation_id, resources } = selection
  if (formation_id !== undefined) {
    const formation = await formationKind.find(pool, formation_id)
    if (formation?.project_id !== projectId) return raise('RESOURCE_NOT_FOUND', { meta: { id: formation_id } })
    allowFormation(formation)
    for (const { resource_type, physical_resource_id: id } of await trackedResources(pool, formation_id)) {
      const type = builtInType(services, resource_type)
      const live = type && id ? await findLive(pool, type, id, projectId) : null
      if (type && id && live) add({ id, type, live })
    }
  }
  for (const id of resources ?? []) {
    const type = builtInTypes(services).find(({ kind }) => isIdOf(kind, id))
    const live = type ? await findLive(pool, type, id, projectId) : null
    const missing = !type || !live || (await unreadable(pool, caller, [{ id, type, live }], projectId)).length > 0
    if (missing) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
    add({ id, type, live })
  }
  if (formation_id === undefined && resources === undefined) {
    for (const type of wanted ?? builtInTypes(services).filter(({ name }) => !NAMED_ONLY.includes(name)))
      await eachOf(pool, type, projectId, add)
    for (const { type, live } of [...found.values()])
      for (const id of (live.row && type.declared.owns?.(live.row)) ?? []) if (id !== null) found.delete(id)
  }
  const chosen = [...found.values()].filter(({ type }) => !wanted || wanted.includes(type))
  if (chosen.length > MAX_RESOURCES)
    raiseInvalid({
      code: 'LIMIT_REACHED',
      path: '',
      message: `More than the ${MAX_RESOURCES} resources that a template may have`,
    })
  const denied_actions = await unreadable(pool, caller, chosen, projectId)
  if (denied_actions.length > 0)
    raise('FORBIDDEN', {
      message: `The caller lacks ${denied_actions.map(({ action }) => action).join(', ')}`,
      meta: { denied_actions },
    })
  return chosen.sort((one, other) => (ageOf(one) < ageOf(other) ? -1 : 1))
}

const ageOf = ({ id, live }: SelectedResource): string =>
  `${(live.row as { created_at?: string } | null)?.created_at} ${id}`

const typesNamed = (services: Services, names: readonly string[]): BuiltInType[] =>
  names.map(
    (name, index) =>
      builtInType(services, name) ??
      raiseInvalid({
        code: 'INVALID_VALUE',
        path: `types[${index}]`,
        message: `${name.slice(0, 100)} is no built-in type of resources`,
      }),
  )

/** Gives all resources of a type that a project has, up to one more than a template may have; by the index of its list. */
async function eachOf(
  db: Queryable,
  type: BuiltInType,
  projectId: string,
  add: (each: SelectedResource) => void,
): Promise<void> {
  const { kind, declared } = type
  if (kind.global) return
  const rows: readonly KindRow[] = await db.any(kind.sql`
    select ${kind.columns} from ${sql.identifier([kind.table])} t where t.project_id = ${projectId}
    order by t.created_at, t.id limit ${MAX_RESOURCES + 1}`)
  for (const row of rows) {
    const whole = declared.find ? await declared.find(db, row.id) : row
    if (whole && (declared.exported?.(whole) ?? true)) add({ id: row.id, type, live: liveOf(type, whole) })
  }
}

async function unreadable(
  db: Queryable,
  caller: Caller,
  chosen: readonly SelectedResource[],
  projectId: string,
): Promise<{ resource_type: string; action: string }[]> {
  const asked = chosen.map(({ type, live }) => ({ type, live, args: live.values }))
  const reads = await mayReadResource(db, caller, asked, projectId)
  const denied = chosen.filter((_, index) => !reads[index])
  const actions = new Map(denied.map(({ type }) => [type.name, type.operations.read.action as string]))
  return [...actions].map(([resource_type, action]) => ({ resource_type, action }))
}
