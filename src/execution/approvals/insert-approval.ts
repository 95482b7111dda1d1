import { recordActivityInTx } from '#control/activity/record.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { storableText, storableValue } from '#core/base/storable-text.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type ApprovalRow, approvalKind, type Frozen, proposalOf, storableApproval } from './model.ts'
import { expireQueue } from './queue.ts'
import { sealFrozen } from './seal.ts'

/** Proposed call with its grounds and lifetime. */
export type ApprovalTerms = {
  proposed: { tool_id: string | null; tool_name: string; action?: string } | null
  reasoning: string | null
  evidence: Record<string, unknown> | null
  predicted_impact: string | null
  /** Seconds. */
  expires_in: number
  /** Call to execute after approval; null without a call. */
  frozen: Frozen | null
}

/** Origin and ownership of an approval. */
type ApprovalSource = Pick<
  ApprovalRow,
  'project_id' | 'origin' | 'starters' | 'forbid_self_approval' | 'content_mode'
> &
  Partial<ApprovalRow>

/**
 * Inserts an approval with its events and its expiry message. Returns null if another pending approval has the same
 * dedup key.
 */
export async function insertApproval(
  tx: Tx,
  services: Services,
  source: ApprovalSource,
  terms: ApprovalTerms,
): Promise<ApprovalRow | null> {
  const { project_id } = source
  const { proposed, frozen } = terms
  const id = newId(approvalKind.prefix)
  const expires_at = new Date(services.clock.now().getTime() + terms.expires_in * 1000)
  const text = (value: string | null) => value && storableText(value)
  const row = await approvalKind.insertUnlessTaken(tx, {
    ...source,
    id,
    proposed_action: proposed && {
      ...proposed,
      arguments: storableValue(frozen?.arguments ?? null) as Record<string, unknown> | null,
    },
    reasoning: text(terms.reasoning),
    evidence: storableValue(terms.evidence) as ApprovalTerms['evidence'],
    predicted_impact: text(terms.predicted_impact),
    expires_at: expires_at.toISOString(),
    sealed: frozen && sealFrozen(services, { id, project_id }, frozen),
  })
  if (!row) return null
  tx.emit(approvalKind, 'created', storableApproval(row))
  tx.send(expireQueue, { approval_id: id, project_id }, { startAfter: expires_at })
  const { origin, policy_version } = row
  recordActivityInTx(tx, {
    project_id,
    kind: 'approval_created',
    summary: `${proposalOf(row)} awaits approval`,
    detail: { origin, tool_id: proposed?.tool_id ?? null, policy_version, expires_at: row.expires_at },
    orchestration_run_id: row.orchestration_run_id,
    agent_id: row.agent_id,
    generation_id: row.generation_id,
    ref_id: id,
  })
  return row
}
