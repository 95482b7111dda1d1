import type { Services } from '#core/base/services.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { insertApproval } from './insert-approval.ts'
import type { ApprovalRow } from './model.ts'
import { loadRequester } from './store.ts'

/**
 * Files the approval of a task transition. The approval executes nothing; the tasks module is notified of the decision.
 */
export async function fileTaskApproval(
  tx: Tx,
  services: Services,
  {
    title,
    expires_in,
    ...terms
  }: {
    project_id: string
    task_id: string
    task_transition: string
    /** Principal that requested the transition. */
    authority: PrincipalRecord
    /** Seconds. */
    expires_in: number
    title: string
  },
): Promise<ApprovalRow> {
  const row = await insertApproval(
    tx,
    services,
    {
      ...terms,
      origin: 'task_transition',
      forbid_self_approval: false,
      ...(await loadRequester(tx, terms.project_id, terms.authority)),
    },
    { proposed: null, reasoning: null, evidence: { task: title }, predicted_impact: null, expires_in, frozen: null },
  )
  // Only approvals with a dedup key can conflict.
  if (!row) throw new Error(`no approval could be filed for task ${terms.task_id}`)
  return row
}
