import type { Tx } from '../../core/db/writer.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { insertItem } from './insert-approval.ts'
import type { ApprovalRow } from './model.ts'
import { requesterOf } from './store.ts'

/** Files the question whether a task may make a transition. Nothing is executed for it: the module of tasks is told. */
export async function fileTaskApproval(
  tx: Tx,
  services: Services,
  {
    title,
    expires_in,
    ...asks
  }: {
    project_id: string
    task_id: string
    task_transition: string
    /** Who asked for the transition. */
    authority: PrincipalRecord
    /** Seconds. */
    expires_in: number
    title: string
  },
): Promise<ApprovalRow> {
  const row = await insertItem(
    tx,
    services,
    {
      ...asks,
      origin: 'task_transition',
      forbid_self_approval: false,
      ...(await requesterOf(tx, asks.project_id, asks.authority)),
    },
    { proposed: null, reasoning: null, evidence: { task: title }, predicted_impact: null, expires_in, frozen: null },
  )
  // Only items with a dedup key make way for each other.
  if (!row) throw new Error(`no approval could be filed for the task ${asks.task_id}`)
  return row
}
