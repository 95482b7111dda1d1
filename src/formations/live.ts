import { isDeepStrictEqual } from 'node:util'
import type { JsonObject } from '../core/api/flatten.ts'
import { isIdOf, type KindRow } from '../core/api/kind.ts'
import { type Queryable, sql } from '../core/db/sql.ts'
import type { Services } from '../core/process/services.ts'
import type { TrackedRow } from './store.ts'
import { findType } from './types/find.ts'
import { readHandled } from './types/handler.ts'
import type { BuiltInType, Live } from './types/model.ts'

/** Resources as they are, beside what a formation last made of them. */

/** What a record shows of the properties of a type. */
export const shownBy = ({ declared }: BuiltInType, record: JsonObject): JsonObject =>
  declared.translate ? { ...record, ...declared.translate.shown(record) } : record

/** The resource of a type under an id, if the project has it. */
export async function findLive(db: Queryable, type: BuiltInType, id: string, projectId: string): Promise<Live | null> {
  const { kind, declared } = type
  if (!isIdOf(kind, id)) return null
  const row: KindRow | null = await (declared.find ?? kind.find)(db, id)
  return row && ofProject(type, row, projectId) ? liveOf(type, row) : null
}

const ofProject = ({ kind }: BuiltInType, row: KindRow, projectId: string): boolean =>
  kind.global || row.project_id === projectId

export function liveOf(type: BuiltInType, row: KindRow): Live {
  const record = type.declared.present?.(row) ?? (type.kind.present(row) as JsonObject)
  return { row, values: shownBy(type, record) }
}

/** What the tracked resources of a project are like now, by their ids as resources; those that are gone are missing. */
export async function liveResources(
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
        const live = row.physical_resource_id && (await readHandled(services, type.registered, row, projectId))
        if (live && row.physical_resource_id) found.set(row.physical_resource_id, live)
      }
      continue
    }
    const { kind, declared } = type
    const ids = rows.flatMap(({ physical_resource_id: id }) => (id && isIdOf(kind, id) ? [id] : []))
    if (ids.length === 0) continue
    const lives: (KindRow | null)[] = []
    if (declared.find) for (const id of ids) lives.push(await declared.find(db, id))
    else
      lives.push(
        ...(await db.any(kind.sql`
          select ${kind.columns} from ${sql.identifier([kind.table])} t where t.id = any(${sql.array(ids, 'text')})`)),
      )
    for (const row of lives) if (row && ofProject(type, row, projectId)) found.set(row.id, liveOf(type, row))
  }
  return found
}

/** Whether two values say the same; the order of keys does not count. */
export const isSameValue = (one: unknown, other: unknown): boolean => isDeepStrictEqual(plain(one), plain(other))

/** A value without the prototypes that objects of drivers and parsers have. */
const plain = (value: unknown): unknown => (value === undefined ? undefined : JSON.parse(JSON.stringify(value)))
