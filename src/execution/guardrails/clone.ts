import { copyAuthor } from '#core/resources/version.ts'
import type { Cloneable } from '#identity/projects/clone.ts'
import { guardrailKind, guardrailVersions } from './model.ts'
import { listProjectGuardrails } from './store.ts'

/**
 * Copies the guardrails of a project without their versions. A context tool without a copy is dropped: expressions that
 * read its result fail closed.
 */
export const copyGuardrails: Cloneable['copy'] = async (tx, from, to, ids, { caller }) => {
  for (const row of await listProjectGuardrails(tx, from)) {
    if (ids.has(row.id)) continue
    const { name, description, document, context_mode, context_tool_id } = row
    const fields = { name, description, document, context_mode, project_id: to }
    const context = context_tool_id === null ? null : (ids.get(context_tool_id) ?? null)
    const copy = await guardrailVersions.insert(tx, { ...fields, context_tool_id: context }, copyAuthor(caller))
    ids.set(row.id, copy.id)
    tx.emit(guardrailKind, 'created', copy)
  }
}

export const guardrailCloning: Cloneable = { name: 'guardrails', copy: copyGuardrails }
