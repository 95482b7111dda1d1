import { z } from 'zod'
import { kinds } from '#core/api/kind.ts'
import { allOf, type Queryable, sql } from '#core/db/sql.ts'
import { readEnvelope, StoredEnvelope, storedEnvelope } from '#core/writes/event-envelopes.ts'
import type { Tx } from '#core/writes/writer.ts'

/** Emits an event by its name with any record, as the module of its kind would with a row. */
export function emitNamed(tx: Tx, name: string, projectId: string, record: { id: string }): void {
  const [plural, verb] = name.split('.')
  const kind = kinds.all().find(each => each.plural === plural)
  if (!kind) throw new Error(`no kind emits ${name}`)
  tx.emit(kind, verb, { id: record.id, project_id: projectId }, { data: record })
}

const stored = sql.type(StoredEnvelope.extend({ name: z.string() }))

/** Events as they are stored, oldest first, with the data of their envelopes. */
export async function storedEvents(
  db: Queryable,
  { resource, project, name }: { resource?: string; project?: string; name?: string },
): Promise<{ name: string; data: any; envelope: any; text: string }[]> {
  const rows = await db.any(stored`
    select name, ${storedEnvelope} from events where ${allOf([
      resource !== undefined && sql.fragment`resource_id = ${resource}`,
      project !== undefined && sql.fragment`project_id = ${project}`,
      name !== undefined && sql.fragment`name = ${name}`,
    ])} order by created_at, id`)
  return rows.map(row => {
    const text = readEnvelope(row)
    const envelope = JSON.parse(text)
    return { name: row.name, data: envelope.data, envelope, text }
  })
}
