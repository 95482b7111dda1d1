import { newId } from '#core/base/ids.ts'
import type { Caller } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type CasePrincipal, type CaseRow, type TimelineKind, type TimelineRow, timelineKind } from './model.ts'
import { timelineInsert } from './store.ts'

/** Principal of a timeline entry. */
export type CaseActor = Pick<TimelineRow, 'principal_kind' | 'principal_id'>

/** Actor of changes without a caller: by a playbook execution, or by a change of a referenced record. */
export const AUTOMATION: CaseActor = { principal_kind: 'automation', principal_id: null }

export const actorOf = ({ principal }: Pick<Caller, 'principal'>): CasePrincipal => ({
  kind: principal.type,
  id: principal.id,
})

export const byCaller = ({ principal }: Pick<Caller, 'principal'>): CaseActor => ({
  principal_kind: principal.type,
  principal_id: principal.id,
})

export type TimelineEvent = {
  kind: TimelineKind
  data?: Record<string, unknown>
  playbook_execution_id?: string | null
  step_key?: string | null
}

/** Builds timeline rows. */
export const timelineEntries = (
  { id: case_id, project_id }: Pick<CaseRow, 'id' | 'project_id'>,
  by: CaseActor,
  events: readonly TimelineEvent[],
) =>
  events.map(({ kind, data = {}, playbook_execution_id = null, step_key = null }) => ({
    id: newId(timelineKind.prefix),
    project_id,
    case_id,
    kind,
    ...by,
    playbook_execution_id,
    step_key,
    data,
    bytes: Buffer.byteLength(JSON.stringify(data)),
  }))

/**
 * Appends entries to the timeline of a case at the end of the transaction. Requires the row lock. Call it once per
 * transaction with all entries: the order of two calls is undefined.
 */
export function appendTimeline(
  tx: Pick<Tx, 'alongside'>,
  row: Pick<CaseRow, 'id' | 'project_id'>,
  by: CaseActor,
  events: readonly TimelineEvent[],
): void {
  const entries = timelineEntries(row, by, events)
  if (entries.length > 0) tx.alongside(guard => timelineInsert(entries, guard))
}
