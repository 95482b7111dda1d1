import { kinds } from '../../src/core/api/kind.ts'
import type { Tx } from '../../src/core/db/write.ts'

/** Emits an event by its name with any record, as the module of its kind would with a row. */
export function emitNamed(tx: Tx, name: string, projectId: string, record: { id: string }): void {
  const [plural, verb] = name.split('.')
  const kind = kinds.all().find(each => each.plural === plural)
  if (!kind) throw new Error(`no kind emits ${name}`)
  tx.emit(kind, verb, { id: record.id, project_id: projectId }, { data: record })
}
