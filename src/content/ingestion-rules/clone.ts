import { newId } from '#core/base/ids.ts'
import { principalRecord } from '#core/iam/caller.ts'
import type { Cloneable } from '#identity/projects/clone.ts'
import { ingestionRuleKind } from './model.ts'
import { listIngestionRules } from './store.ts'

/** Copies the rules whose converter was copied; a rule cannot exist without its converter. */
export const ruleCloning: Cloneable = {
  name: 'ingestion_rules',
  after: ['agents', 'tools'],
  async copy(tx, from, to, ids, { caller }) {
    for (const row of await listIngestionRules(tx, from)) {
      const converter = ids.get((row.tool_id ?? row.agent_id) as string)
      if (!converter) continue
      const copy = await ingestionRuleKind.insertUnlessTaken(tx, {
        ...row,
        author: principalRecord(caller),
        ...(row.tool_id ? { tool_id: converter } : { agent_id: converter }),
        id: newId(ingestionRuleKind.prefix),
        project_id: to,
        created_at: undefined,
        updated_at: undefined,
      })
      if (!copy) continue
      ids.set(row.id, copy.id)
      tx.emit(ingestionRuleKind, 'created', copy)
    }
  },
}
