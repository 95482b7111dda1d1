import { isDeepStrictEqual } from 'node:util'
import { isIdOf, kinds, type Values } from '#core/api/kind.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { caseExecutions } from './executions.ts'
import { type CaseRow, type CaseStatus, caseKind, FIELDS_KIB } from './model.ts'
import { appendTimeline, type CaseActor, type TimelineEvent } from './timeline.ts'

/** @throws CASE_STATE_CONFLICT unless the case has one of the allowed statuses */
export function requireStatus({ id, status }: CaseRow, ...allowed: CaseStatus[]): void {
  if (!allowed.includes(status)) raise('CASE_STATE_CONFLICT', { meta: { case_id: id, status } })
}

/** Only the tags of a closed case can change. @throws CASE_STATE_CONFLICT for a closed case */
export const requireNotClosed = (row: CaseRow): void => requireStatus(row, 'open', 'in_progress', 'waiting', 'resolved')

/** @throws PLAYBOOK_EXECUTION_CONFLICT if the case has an active execution */
export async function requireNoExecution(
  db: Queryable,
  { id, active_execution_id: execution_id }: CaseRow,
): Promise<void> {
  if (execution_id === null) return
  const status = await caseExecutions.only()?.statusOf(db, execution_id)
  raise('PLAYBOOK_EXECUTION_CONFLICT', {
    message: `Case ${id} has an active execution`,
    meta: { case_id: id, execution_id, status },
  })
}

/**
 * Locks a playbook against deletion until the transaction ends.
 * @throws RESOURCE_NOT_FOUND if the project does not have it
 */
export async function requirePlaybook(db: Queryable, projectId: string, id: string | null | undefined): Promise<void> {
  if (id == null) return
  const kind = kinds.find('playbook')
  if (!kind || !isIdOf(kind, id) || !(await kind.reference(db, id, projectId)))
    raise('RESOURCE_NOT_FOUND', { meta: { id } })
}

/** Merges `changes` into the fields of a case, key by key. @throws VALIDATION_FAILED if the result is too large */
export function mergeFields(stored: CaseRow['fields'], changes: CaseRow['fields']): CaseRow['fields'] {
  const fields = { ...stored, ...changes }
  if (Buffer.byteLength(JSON.stringify(fields)) > FIELDS_KIB * 1024) raiseFieldsTooBig()
  return fields
}

/** @throws VALIDATION_FAILED */
export const raiseFieldsTooBig = (): never =>
  raiseInvalid({
    code: 'TOO_BIG',
    path: 'fields',
    message: `must be at most ${FIELDS_KIB} KiB as JSON after the change`,
  })

type Change = { from: unknown; to: unknown }

/** Returns the changes between two versions of a case for its timeline: by field, and by key within `fields`. */
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

/** Updates a case and appends the changes to its timeline. Does nothing without a change. Requires the row lock. */
export async function changeCase(tx: Tx, stored: CaseRow, values: Values<CaseRow>, by: CaseActor): Promise<CaseRow> {
  if (Object.keys(caseKind.changes(stored, { ...stored, ...values })).length === 0) return stored
  const row = await caseKind.update(tx, stored.id, values)
  const changes = changedFields(stored, row)
  appendTimeline(tx, row, by, [{ kind: 'updated', data: { changes } }])
  tx.emit(caseKind, 'updated', row, { extra: { changed: Object.keys(changes) } })
  return row
}

/**
 * Updates a case including its status. If the status changes, emits an event and appends `status_changed` with `data`
 * to the timeline, after the entries in `before`. Requires the row lock.
 */
export async function moveCase(
  tx: Tx,
  stored: CaseRow,
  values: Values<CaseRow> & { status: CaseStatus },
  by: CaseActor,
  { before = [], data = {}, ...at }: Omit<TimelineEvent, 'kind'> & { before?: readonly TimelineEvent[] } = {},
): Promise<CaseRow> {
  const row = await caseKind.update(tx, stored.id, values)
  const changed = stored.status !== row.status
  const event: TimelineEvent = { kind: 'status_changed', data: { from: stored.status, to: row.status, ...data }, ...at }
  appendTimeline(tx, row, by, changed ? [...before, event] : before)
  if (changed) tx.emit(caseKind, 'status_changed', row, { extra: { from_status: stored.status } })
  return row
}
