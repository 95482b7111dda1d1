import { copiedBy } from '../../core/api/version-archive.ts'
import type { Cloneable } from '../../identity/projects/clone.ts'
import { versionedGuardrails } from './archive.ts'
import { guardrailKind } from './model.ts'
import { guardrailsOf } from './store.ts'

/**
 * Copies every guardrail of a project, without its versions. A context tool that was not copied before is left out: what
 * reads its answer fails closed.
 */
export const copyGuardrails: Cloneable['copy'] = async (tx, from, to, ids, { caller }) => {
  for (const row of await guardrailsOf(tx, from)) {
    if (ids.has(row.id)) continue
    const { name, description, document, context_mode, context_tool_id } = row
    const copied = { name, description, document, context_mode, project_id: to }
    const context = context_tool_id === null ? null : (ids.get(context_tool_id) ?? null)
    const copy = await versionedGuardrails.insert(tx, { ...copied, context_tool_id: context }, copiedBy(caller))
    ids.set(row.id, copy.id)
    tx.emit(guardrailKind, 'created', copy)
  }
}

export const guardrailCloning: Cloneable = { name: 'guardrails', copy: copyGuardrails }
