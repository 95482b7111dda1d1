import type { ApprovalRow, ApprovedCallOutcome, Frozen } from './model.ts'

/** The message that a turn opens with that carries on after an approval. */
export function followUpMessage(row: ApprovalRow, frozen: Frozen | null, outcome: ApprovedCallOutcome | null): string {
  const { proposed_action, status, resolution_reason, id } = row
  const called = proposed_action?.action ?? proposed_action?.tool_name ?? 'a tool'
  const lines = [`The call of ${called} that waited for approval (${id}) was ${decisions[status]}.`]
  if (frozen) lines.push(`Arguments: ${JSON.stringify(frozen.arguments)}`)
  if (row.edited_arguments) lines.push('The arguments were changed by whoever approved it.')
  if (resolution_reason !== null) lines.push(`Reason: ${resolution_reason}`)
  if (outcome?.error) lines.push(`It failed: ${JSON.stringify({ error: outcome.error })}`)
  else if (outcome) lines.push(`Result: ${outcome.text}`)
  else if (status === 'approved') lines.push('The client is asked to make it.')
  else lines.push('It was not executed.')
  return lines.join('\n')
}

const decisions: Record<ApprovalRow['status'], string> = {
  pending: 'not decided',
  approved: 'approved',
  rejected: 'rejected',
  expired: 'not decided in time: the approval has expired',
}
