import { isIdOf } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { systemClock } from '#core/base/clock.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { requireNoExecution, requireNotClosed } from './change.ts'
import { linkCase } from './links.ts'
import { type CaseRow, caseKind } from './model.ts'
import { moveCaseContents } from './store.ts'
import { actorOf, appendTimeline, byCaller } from './timeline.ts'

/**
 * Moves the timeline, evidence and links of a case to another case and closes it with the outcome `merged`. Its
 * executions are not moved.
 * @throws RESOURCE_NOT_FOUND, FORBIDDEN, VALIDATION_FAILED for itself, CASE_STATE_CONFLICT, PLAYBOOK_EXECUTION_CONFLICT
 */
export async function mergeCase(
  { tx, caller, allow }: Pick<Context, 'tx' | 'caller' | 'allow'>,
  row: CaseRow,
  intoId: string,
): Promise<CaseRow> {
  const { id, project_id } = row
  if (intoId === id)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'into_case_id', message: 'must not be the case itself' })
  const raiseNotFound = () => raise('RESOURCE_NOT_FOUND', { meta: { id: intoId } })
  // Read without a lock: two merges of the same pair would deadlock.
  const target = isIdOf(caseKind, intoId) ? await caseKind.find(tx, intoId) : null
  if (target?.project_id !== project_id) return raiseNotFound()
  allow('cases:UpdateCase', { kind: caseKind, row: target })
  // The contents of this case become readable through the other one.
  allow('cases:GetCase', { kind: caseKind, row })
  // Ordered locks serialize merges of the same pair.
  const [first, second] = [id, intoId].sort()
  const locked = new Map<string, CaseRow | null>()
  for (const each of [first, second]) locked.set(each, await caseKind.find(tx, each, true))
  const from = locked.get(id) ?? raise('RESOURCE_NOT_FOUND', { meta: { id } })
  const into = locked.get(intoId) ?? raiseNotFound()
  for (const each of [from, into]) requireNotClosed(each)
  await requireNoExecution(tx, from)
  const by = byCaller(caller)
  const evidence = await moveCaseContents(tx, id, intoId)
  const { timelineEvents } = await linkCase(tx, into, actorOf(caller), { type: 'case', target_id: id })
  const closed = await caseKind.update(tx, id, {
    status: 'closed',
    outcome: 'merged',
    outcome_note: null,
    closed_at: systemClock.now().toISOString(),
  })
  appendTimeline(tx, into, by, [{ kind: 'updated', data: { merged_case_id: id } }, ...timelineEvents])
  if (evidence > 0)
    tx.emit(caseKind, 'updated', await caseKind.lock(tx, intoId), { extra: { changed: ['evidence_count'] } })
  const to = { from: from.status, to: closed.status, outcome: 'merged', into_case_id: intoId }
  appendTimeline(tx, closed, by, [{ kind: 'status_changed', data: to }])
  tx.emit(caseKind, 'status_changed', closed, { extra: { from_status: from.status } })
  return closed
}
