import { isDeepStrictEqual } from 'node:util'
import type { JsonObject } from '#core/api/flatten.ts'
import { isIdOf, type KindRow } from '#core/api/kind.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import type { TrackedRow } from '../records/store.ts'
import { homeOfKind } from '../types/built-in.ts'
import { findType } from '../types/find.ts'
import { readFromHandler } from '../types/handler.ts'
import type { BuiltInType, Live } from '../types/model.ts'

/** Current state of the resources of formations. */

/** Returns the properties of a type that a record contains. */
export const presentedProperties = ({ declared }: BuiltInType, record: JsonObject): JsonObject =>
  declared.translate ? { ...record, ...declared.translate.shown(record) } : record

/** Returns the resource of a type by ID; null if the project has none. */
export async function findLive(
  services: Services,
  db: Queryable,
  type: BuiltInType,
  { id, projectId }: { id: string; projectId: string },
): Promise<Live | null> {
  const { kind, declared } = type
  if (!isIdOf(kind, id)) return null
  const row: KindRow | null = await (declared.find ?? kind.find)(homeOfKind(services, kind)?.pool ?? db, id)
  return row && isInProject(type, row, projectId) ? toLive(type, row) : null
}

const isInProject = ({ kind }: BuiltInType, row: KindRow, projectId: string): boolean =>
  kind.global || row.project_id === projectId

export function toLive(type: BuiltInType, row: KindRow): Live {
  const record = type.declared.present?.(row) ?? (type.kind.present(row) as JsonObject)
  return { row, values: presentedProperties(type, record) }
}

/** Returns the existing ones of the tracked resources of a project, by their physical IDs. One query per type. */
export async function listLiveResources(
  services: Services,
  db: Queryable,
  tracked: readonly TrackedRow[],
  projectId: string,
): Promise<Map<string, Live>> {
  const found = new Map<string, Live>()
  for (const [name, rows] of Map.groupBy(tracked, ({ resource_type }) => resource_type)) {
    const type = findType(services, name)
    if (!type) continue
    if (type.registered) {
      for (const row of rows) {
        const live = row.physical_resource_id && (await readFromHandler(services, type.registered, row, projectId))
        if (live && row.physical_resource_id) found.set(row.physical_resource_id, live)
      }
      continue
    }
    const { kind, declared } = type
    const ids = rows.flatMap(({ physical_resource_id: id }) => (id && isIdOf(kind, id) ? [id] : []))
    if (ids.length === 0) continue
    const current: (KindRow | null)[] = []
    const source = homeOfKind(services, kind)?.pool ?? db
    if (declared.find) for (const id of ids) current.push(await declared.find(source, id))
    else
      current.push(
        ...(await source.any(kind.sql`
          select ${kind.columns} from ${sql.identifier([kind.table])} t where t.id = any(${sql.array(ids, 'text')})`)),
      )
    for (const row of current) if (row && isInProject(type, row, projectId)) found.set(row.id, toLive(type, row))
  }
  return found
}

/** Whether two values are equal as JSON, regardless of key order. */
export const isSameValue = (one: unknown, other: unknown): boolean => isDeepStrictEqual(plain(one), plain(other))

/** Removes the prototypes of objects from drivers and parsers. */
const plain = (value: unknown): unknown => (value === undefined ? undefined : parseExactJson(JSON.stringify(value)))
