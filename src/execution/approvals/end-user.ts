import { type EndUserAccess, endUserView } from '#core/api/end-user.ts'
import { sql } from '#core/db/sql.ts'
import { endUserSessions, isOfOwnSession } from '../generations/end-user.ts'
import type { ApprovalRow } from './model.ts'

/** Access of end users to the approvals of their sessions. */

/** Title and arguments are null unless the end user may resolve the approval. */
export const approvalView = endUserView(
  ['id', 'status', 'title', 'shown_arguments', 'expires_at', 'created_at'],
  [
    'project_id',
    'origin',
    'proposed_action',
    'reasoning',
    'evidence',
    'predicted_impact',
    'dedup_key',
    'orchestration_run_id',
    'node_id',
    'generation_id',
    'session_id',
    'agent_id',
    'task_id',
    'task_transition',
    'policy_version',
    'previous_item_id',
    'approver',
    'resolved_by',
    'resolved_by_actor_id',
    'resolution_reason',
    'edited_arguments',
    'execution',
    'updated_at',
    'actor_id',
    'actor_name',
    'actor_external_id',
    'agent_name',
  ],
)

/** Access to an operation on an approval. End users cannot edit arguments. */
export const approvalAccess = (
  access: Pick<EndUserAccess<ApprovalRow>, 'fields'> = {},
): EndUserAccess<ApprovalRow> => ({
  scope: 'approvals',
  owns: isOfOwnSession,
  view: approvalView,
  ...access,
})

export const listAccess: EndUserAccess = {
  scope: 'approvals',
  query: ['status', 'session_id'],
  rows: endUser => {
    const sessions = endUserSessions.only()
    return sessions ? sql.fragment`t.session_id in (${sessions.ids(endUser)})` : sql.fragment`false`
  },
  view: approvalView,
}
