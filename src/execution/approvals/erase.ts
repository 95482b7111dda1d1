import type { TurnContentEraser } from '#control/retention/erasure.ts'
import { raise } from '#core/base/errors.ts'
import { approvalKind } from './model.ts'
import { eraseApprovalTurns, findApprovalWithFollowUp } from './store.ts'

type Data = Record<string, unknown>

const CONTENT = ['reasoning', 'evidence', 'predicted_impact', 'edited_arguments', 'shown_arguments']

/** Removes from event data the proposed call, the approved arguments, the error of the call, and texts of end users. */
function withoutContent(data: Data): Data {
  const inner = (name: string, field: string): Data =>
    data[name] ? { [name]: { ...(data[name] as Data), [field]: null } } : {}
  return {
    ...data,
    ...inner('proposed_action', 'arguments'),
    ...inner('execution', 'error'),
    ...Object.fromEntries(CONTENT.filter(name => name in data).map(name => [name, null])),
    ...(data.resolved_by_actor_id ? { resolution_reason: null } : {}),
  }
}

/**
 * Erases the approvals of turns. Pending approvals expire without a follow-up turn, because nothing is left to decide.
 * An active call or follow-up turn blocks the purge.
 */
export const approvalContent: TurnContentEraser = {
  async erase(tx, turns) {
    const ids = turns.map(({ id }) => id)
    const rows = await eraseApprovalTurns(tx, ids)
    const busy = await findApprovalWithFollowUp(
      tx,
      rows.map(({ id }) => id),
    )
    if (busy) {
      const generation_id = rows.find(({ id }) => id === busy)?.generation_id
      raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id, approval_id: busy } })
    }
    const expired = rows.filter(({ was_pending }) => was_pending)
    for (const { was_pending: _, ...row } of expired) tx.emit(approvalKind, 'expired', row)
    return {
      counts: { approvals: rows.length },
      events: [{ resource_type: approvalKind.name, ids: rows.map(({ id }) => id), without: withoutContent }],
    }
  },
}
