import type { Tx } from '../../core/db/write.ts'
import type { Cloneable } from '../../identity/projects/clone.ts'
import { versionedGuardrails } from './archive.ts'
import { guardrailKind } from './model.ts'
import { guardrailsOf } from './store.ts'

/**
 * Copies every guardrail of a project, without its versions. A context tool that was not copied before is left out: what
 * reads its answer fails closed.
 */
export async function copyGuardrails(tx: Tx, from: string, to: string, ids: Map<string, string>): Promise<void> {
  for (const row of await guardrailsOf(tx, from)) {
    if (ids.has(row.id)) continue
    const { name, description, document, context_mode, context_tool_id } = row
    const copied = { name, description, document, context_mode, project_id: to }
    const context = context_tool_id === null ? null : (ids.get(context_tool_id) ?? null)
    const copy = await versionedGuardrails.insert(tx, { ...copied, context_tool_id: context }, { created_by: null })
    ids.set(row.id, copy.id)
    tx.emit(guardrailKind, 'created', copy)
  }
}

export const guardrailCloning: Cloneable = { name: 'guardrails', copy: copyGuardrails }
