import { isDeepStrictEqual } from 'node:util'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { isIdOf, kinds, type Values } from '../../core/api/kind.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { caseExecutions } from './executions.ts'
import { type CaseRow, type CaseStatus, caseKind, FIELDS_KIB } from './model.ts'
import { appendTimeline, type CaseActor, type TimelineEvent } from './timeline.ts'

/** Raises CASE_STATE_CONFLICT unless the case stands where the call is allowed. */
export function requireStatus({ id, status }: CaseRow, ...allowed: CaseStatus[]): void {
  if (!allowed.includes(status)) raise('CASE_STATE_CONFLICT', { meta: { case_id: id, status } })
}

/** Raises CASE_STATE_CONFLICT for a closed case, which takes tags and nothing else. */
export const requireNotClosed = (row: CaseRow): void => requireStatus(row, 'open', 'in_progress', 'waiting', 'resolved')

/** Raises PLAYBOOK_EXECUTION_CONFLICT while an execution is under way on the case. */
export async function requireNoExecution(
  db: Queryable,
  { id, active_execution_id: execution_id }: CaseRow,
): Promise<void> {
  if (execution_id === null) return
  const status = await caseExecutions.only()?.statusOf(db, execution_id)
  raise('PLAYBOOK_EXECUTION_CONFLICT', {
    message: 'An execution is under way on the case',
    meta: { case_id: id, execution_id, status },
  })
}

/** Raises RESOURCE_NOT_FOUND for a playbook that the project does not have; it stays until the transaction ends. */
export async function requirePlaybook(db: Queryable, projectId: string, id: string | null | undefined): Promise<void> {
  if (id == null) return
  const kind = kinds.find('playbook')
  if (!kind || !isIdOf(kind, id) || !(await kind.reference(db, id, projectId)))
    raise('RESOURCE_NOT_FOUND', { meta: { id } })
}

/** Working data with a change laid over it, key by key. Raises VALIDATION_FAILED when it becomes too large. */
export function mergeFields(stored: CaseRow['fields'], given: CaseRow['fields']): CaseRow['fields'] {
  const fields = { ...stored, ...given }
  if (Buffer.byteLength(JSON.stringify(fields)) > FIELDS_KIB * 1024) fieldsTooBig()
  return fields
}

/** Raises VALIDATION_FAILED for data of a case that is too large. */
export const fieldsTooBig = (): never =>
  raiseInvalid({
    code: 'TOO_BIG',
    path: 'fields',
    message: `must be at most ${FIELDS_KIB} KiB as JSON after the change`,
  })

type Change = { from: unknown; to: unknown }

/** What differs between two states of a case, for its timeline: by field, and by key within `fields`. */
export function changedFields(before: CaseRow, after: CaseRow): Record<string, Change | Record<string, Change>> {
  const changes: Record<string, Change | Record<string, Change>> = {}
  for (const [name, to] of Object.entries(caseKind.changes(before, after))) {
    const from = before[name as keyof CaseRow]
    if (name !== 'fields') {
      changes[name] = { from, to }
      continue
    }
    const old = (key: string): unknown => (Object.hasOwn(before.fields, key) ? before.fields[key] : undefined)
    const keys = Object.entries(to as object).filter(([key, value]) => !isDeepStrictEqual(value, old(key)))
    changes.fields = Object.fromEntries(keys.map(([key, value]) => [key, { from: old(key) ?? null, to: value }]))
  }
  return changes
}

/** Changes a case, whose row the caller holds, and tells of it; nothing where it is so already. */
export async function changeCase(tx: Tx, stored: CaseRow, values: Values<CaseRow>, by: CaseActor): Promise<CaseRow> {
  if (Object.keys(caseKind.changes(stored, { ...stored, ...values })).length === 0) return stored
  const row = await caseKind.update(tx, stored.id, values)
  const changes = changedFields(stored, row)
  appendTimeline(tx, row, by, [{ kind: 'updated', data: { changes } }])
  tx.emit(caseKind, 'updated', row, { extra: { changed: Object.keys(changes) } })
  return row
}

/**
 * Moves a case, whose row the caller holds, to a status with what changes beside it, and tells of it: a row of the timeline
 * behind what led to it, and an event. `data` is kept on the row. Nothing is told where the status stays.
 */
export async function moveCase(
  tx: Tx,
  stored: CaseRow,
  values: Values<CaseRow> & { status: CaseStatus },
  by: CaseActor,
  { before = [], data = {}, ...at }: Omit<TimelineEvent, 'kind'> & { before?: readonly TimelineEvent[] } = {},
): Promise<CaseRow> {
  const row = await caseKind.update(tx, stored.id, values)
  const moved = stored.status !== row.status
  const told: TimelineEvent = { kind: 'status_changed', data: { from: stored.status, to: row.status, ...data }, ...at }
  appendTimeline(tx, row, by, moved ? [...before, told] : before)
  if (moved) tx.emit(caseKind, 'status_changed', row, { extra: { from_status: stored.status } })
  return row
}
