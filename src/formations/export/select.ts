import { z } from 'zod'
import { isIdOf, type KindRow } from '#core/api/kind.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { idStatement, type Queryable, sql } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { canReadResources } from '../plans/calls.ts'
import { findLive, toLive } from '../plans/live.ts'
import { type FormationRow, formationKind } from '../records/model.ts'
import { listTrackedResources } from '../records/store.ts'
import { MAX_RESOURCES } from '../template/shape.ts'
import { MAX_BYTES } from '../template/yaml.ts'
import { builtInType, builtInTypes } from '../types/built-in.ts'
import type { BuiltInType, Live } from '../types/model.ts'

/** Selection of the resources of an export. */

export type ExportSelection = { resources?: string[]; types?: string[]; formation_id?: string; include?: 'content'[] }

export type SelectedResource = { id: string; type: BuiltInType; live: Live }

/** Whether an export of a project includes a type. */
const isIncluded = ({ declared: { exportedWith } }: BuiltInType, { include = [] }: ExportSelection): boolean =>
  exportedWith === undefined || (exportedWith === 'content' && include.includes('content'))

/**
 * Returns the resources of a selection, oldest first.
 * @throws RESOURCE_NOT_FOUND for requested IDs that do not exist or that the caller may not read, FORBIDDEN for other
 *   unreadable resources, VALIDATION_FAILED for more resources or bytes than a template may have
 */
export async function selectResources(
  services: Services,
  caller: Caller,
  projectId: string,
  selection: ExportSelection,
  allowFormation: (row: FormationRow) => void,
): Promise<SelectedResource[]> {
  const { pool } = services
  const onlyTypes = selection.types && requireTypes(services, selection.types)
  const selected = new Map<string, SelectedResource>()
  let bytes = 0
  const add = (each: SelectedResource): void => {
    bytes += JSON.stringify(each.live.values).length
    if (bytes > MAX_BYTES)
      raiseInvalid({
        code: 'TOO_LARGE',
        path: 'types',
        message: `must select at most ${MAX_BYTES} bytes of resources`,
      })
    selected.set(each.id, each)
  }
  const { formation_id, resources } = selection
  if (formation_id !== undefined) {
    const formation = await formationKind.find(pool, formation_id)
    if (formation?.project_id !== projectId) return raise('RESOURCE_NOT_FOUND', { meta: { id: formation_id } })
    allowFormation(formation)
    for (const { resource_type, physical_resource_id: id } of await listTrackedResources(pool, formation_id)) {
      const type = builtInType(services, resource_type)
      const live = type && id ? await findLive(services, pool, type, { id, projectId }) : null
      if (type && id && live) add({ id, type, live })
    }
  }
  for (const id of resources ?? []) {
    const type = builtInTypes(services).find(({ kind }) => isIdOf(kind, id))
    const live = type ? await findLive(services, pool, type, { id, projectId }) : null
    const isMissing = !type || !live || (await deniedReads(pool, caller, [{ id, type, live }], projectId)).length > 0
    if (isMissing) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
    add({ id, type, live })
  }
  if (formation_id === undefined && resources === undefined) {
    for (const type of onlyTypes ?? builtInTypes(services).filter(type => isIncluded(type, selection)))
      await addAll(pool, type, projectId, add)
    for (const { type, live } of [...selected.values()])
      for (const id of (live.row && type.declared.owns?.(live.row)) ?? []) if (id !== null) selected.delete(id)
  }
  const chosen = [...selected.values()].filter(({ type }) => !onlyTypes || onlyTypes.includes(type))
  if (chosen.length > MAX_RESOURCES)
    raiseInvalid({
      code: 'LIMIT_REACHED',
      path: '',
      message: `The selection has more than ${MAX_RESOURCES} resources`,
    })
  const denied_actions = await deniedReads(pool, caller, chosen, projectId)
  if (denied_actions.length > 0)
    raise('FORBIDDEN', {
      message: `Missing permissions: ${denied_actions.map(({ action }) => action).join(', ')}`,
      meta: { denied_actions },
    })
  return chosen.sort((one, other) => (ageOf(one) < ageOf(other) ? -1 : 1))
}

const ageOf = ({ id, live }: SelectedResource): string =>
  `${(live.row as { created_at?: string } | null)?.created_at} ${id}`

const requireTypes = (services: Services, names: readonly string[]): BuiltInType[] =>
  names.map(
    (name, index) =>
      builtInType(services, name) ??
      raiseInvalid({
        code: 'INVALID_VALUE',
        path: `types[${index}]`,
        message: `is not a built-in resource type: ${name.slice(0, 100)}`,
      }),
  )

const sizeStatement = sql.type(z.strictObject({ id: z.string(), bytes: z.int() }))

/** Rows whose size one statement returns. */
const BATCH_ROWS = 50

/**
 * Adds the resources of a type in a project, at most one more than a template may have, until `add` refuses. A row may have
 * megabytes, so sizes are read first, and rows together only up to the bytes of a template. By the index of the type's list.
 */
async function addAll(
  db: Queryable,
  type: BuiltInType,
  projectId: string,
  add: (each: SelectedResource) => void,
): Promise<void> {
  const { kind, declared } = type
  if (kind.global) return
  const table = sql.identifier([kind.table])
  const all = await db.anyFirst(idStatement`
    select t.id from ${table} t where t.project_id = ${projectId}
    order by t.created_at, t.id limit ${MAX_RESOURCES + 1}`)
  for (let at = 0; at < all.length; at += BATCH_ROWS) {
    const ids: readonly string[] = all.slice(at, at + BATCH_ROWS)
    const sized = await db.any(sizeStatement`
      select x.id, octet_length(x::text) as bytes
      from (select ${kind.columns} from ${table} t where t.id = any(${sql.array(ids, 'text')})) x`)
    const bytesOf = new Map(sized.map(({ id, bytes }) => [id, bytes]))
    for (const part of splitByBytes(ids, id => bytesOf.get(id) ?? 0)) {
      const rows: readonly KindRow[] = await db.any(
        kind.sql`select ${kind.columns} from ${table} t where t.id = any(${sql.array(part, 'text')})`,
      )
      const byId = new Map(rows.map(row => [row.id, row]))
      for (const id of part) {
        const row = byId.get(id)
        const whole = row && declared.find ? await declared.find(db, id) : row
        if (whole && (declared.exported?.(whole) ?? true)) add({ id, type, live: toLive(type, whole) })
      }
    }
  }
}

/** Splits IDs, in order, into parts of at most the bytes of a template, or of one row. */
function splitByBytes(ids: readonly string[], bytesOf: (id: string) => number): string[][] {
  const parts: string[][] = []
  let bytes = Number.POSITIVE_INFINITY
  for (const id of ids) {
    bytes += bytesOf(id)
    if (bytes > MAX_BYTES) {
      parts.push([])
      bytes = bytesOf(id)
    }
    parts.at(-1)?.push(id)
  }
  return parts
}

async function deniedReads(
  db: Queryable,
  caller: Caller,
  chosen: readonly SelectedResource[],
  projectId: string,
): Promise<{ resource_type: string; action: string }[]> {
  const targets = chosen.map(({ type, live }) => ({ type, live, args: live.values }))
  const reads = await canReadResources(db, caller, targets, projectId)
  const denied = chosen.filter((_, index) => !reads[index])
  const actions = new Map(denied.map(({ type }) => [type.name, type.operations.read.action as string]))
  return [...actions].map(([resource_type, action]) => ({ resource_type, action }))
}
