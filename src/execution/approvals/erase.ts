import type { TurnContentEraser } from '../../control/retention/erasure.ts'
import { raise } from '../../core/api/errors.ts'
import { approvalKind } from './model.ts'
import { eraseApprovalTurns, findWithFollowUp } from './store.ts'

type Data = Record<string, unknown>

const CONTENT = ['reasoning', 'evidence', 'predicted_impact', 'edited_arguments']

/** An item as an event shows it, without what the model proposed, what was approved in its place, and how the call failed. */
function withoutContent(data: Data): Data {
  const inner = (name: string, field: string): Data =>
    data[name] ? { [name]: { ...(data[name] as Data), [field]: null } } : {}
  return {
    ...data,
    ...inner('proposed_action', 'arguments'),
    ...inner('execution', 'error'),
    ...Object.fromEntries(CONTENT.filter(name => name in data).map(name => [name, null])),
  }
}

/**
 * What turns proposed goes with them. An item that waits for a person expires, because nobody can decide about it any more;
 * no turn follows from that. One that a call or a turn follows from holds the purge up until that is over.
 */
export const approvalContent: TurnContentEraser = {
  async erase(tx, turns) {
    const ids = turns.map(({ id }) => id)
    const rows = await eraseApprovalTurns(tx, ids)
    const busy = await findWithFollowUp(
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
