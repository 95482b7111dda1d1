import type { Cloneable } from '#identity/projects/clone.ts'
import { preparedReplyKind } from './model.ts'

export const preparedReplyCloning: Cloneable = {
  name: 'prepared_replies',
  async copy(tx, from, to, ids) {
    // By prepared_replies_project.
    const rows = await tx.any(preparedReplyKind.sql`
      select ${preparedReplyKind.columns} from prepared_replies t where t.project_id = ${from} order by t.created_at, t.id`)
    for (const { id, name, text } of rows) {
      const copy = await preparedReplyKind.insert(tx, { project_id: to, name, text })
      ids.set(id, copy.id)
      tx.emit(preparedReplyKind, 'created', copy)
    }
  },
}
